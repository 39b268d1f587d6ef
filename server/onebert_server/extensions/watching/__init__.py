"""Compares the answers of each version with the reference of its manifest, and raises an alarm when they differ."""
