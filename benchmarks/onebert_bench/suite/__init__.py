"""`make bench`: ours beside what people would use instead, measured in turns within one run."""
