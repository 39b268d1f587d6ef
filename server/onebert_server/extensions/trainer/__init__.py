"""Versions from a client's examples: the process that trains them, and what becomes of them."""
