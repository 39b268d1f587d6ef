"""`onebert demo`: trains, serves and classifies three small tasks, for real."""
