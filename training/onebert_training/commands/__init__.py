"""What `onebert train` and `onebert evaluate` do."""
