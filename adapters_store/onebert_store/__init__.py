"""Deltas: their file, their rules, their versions. Imports no torch."""
