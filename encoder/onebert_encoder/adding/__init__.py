"""Folders of bases, written once: `onebert base add`, `list` and `check`."""
