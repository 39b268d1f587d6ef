"""Residency: which version is loaded next, how it is proved, and which versions make room for it."""
