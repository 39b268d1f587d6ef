"""Makes deltas offline: methods, data, metrics and one training loop."""
