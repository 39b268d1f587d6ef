"""Trains deltas: methods, data, metrics and one training loop."""
