"""`onebert gate`, and the gates that run before `onebert promote`."""
