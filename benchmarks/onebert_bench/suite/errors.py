"""What can go wrong with a peer, which is a result and not an end of the run."""


class PeerFailed(Exception):
    """A peer cannot be installed, does not run, or fails on a batch; the message is the reason as the page gives it."""
