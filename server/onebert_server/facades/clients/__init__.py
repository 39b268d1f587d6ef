"""What each kind of client sends and reads: one file for each, and what several of them share."""
