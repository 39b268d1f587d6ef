"""Heads that are found exactly on the vectors of the frozen base, and what they are good for: a yardstick, a start."""
