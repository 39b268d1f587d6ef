"""Compares versions in the shadow of an alias with the version that answers."""
