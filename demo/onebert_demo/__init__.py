"""`onebert demo`: the main job, run for real on three small data sets."""
