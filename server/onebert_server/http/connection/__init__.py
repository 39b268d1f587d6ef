"""One HTTP/1.1 connection: its bytes to requests, its responses to bytes, its bounds and its patience."""
