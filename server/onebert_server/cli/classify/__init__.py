"""`onebert classify`: reads inputs, asks a server, writes the answers."""
