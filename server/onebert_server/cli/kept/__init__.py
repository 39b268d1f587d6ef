"""`onebert export-traffic` and `onebert review`: kept answers as rows, and to and from programs for labeling."""
