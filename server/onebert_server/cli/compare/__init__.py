"""Compares two versions: `onebert diff`."""
