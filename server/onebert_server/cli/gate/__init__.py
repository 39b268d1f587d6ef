"""`onebert gate`, and a gate that refuses a move."""
