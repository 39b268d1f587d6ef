"""Trains candidates side by side and keeps one; trains few rows in folds."""
