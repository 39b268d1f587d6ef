"""One thread owns the device: what waits, what runs, and the rows that are resident."""
