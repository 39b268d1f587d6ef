"""The error of a peer, which the page reports, and which does not end the run."""


class PeerFailed(Exception):
    """A peer cannot be installed, does not run, or fails on a batch; the message is shown on the page."""
