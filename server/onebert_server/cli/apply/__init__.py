"""`onebert apply`: makes a server equal to a file, and writes the file of a server."""
