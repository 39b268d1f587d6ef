"""`onebert review`: kept answers to and from programs for labeling."""
