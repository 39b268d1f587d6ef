"""The command `onebert status`."""
