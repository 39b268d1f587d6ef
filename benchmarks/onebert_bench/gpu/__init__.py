"""`make bench-gpu`: what one GPU does, in one command and without a network."""
