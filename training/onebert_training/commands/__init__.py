"""The implementations of `onebert train`, `evaluate`, `calibrate`, `explain` and `check`."""
