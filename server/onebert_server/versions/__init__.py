"""Versions: the registered ones, the resident ones, and the one that a reference means now."""
