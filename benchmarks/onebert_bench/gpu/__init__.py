"""`make bench-gpu`: measures OneBERT on one GPU, in one command and without a network."""
