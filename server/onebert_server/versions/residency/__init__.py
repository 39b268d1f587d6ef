"""Residency: which version is loaded next, how it is checked, and which versions make room for it."""
