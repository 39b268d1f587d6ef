"""`make bench`: OneBERT beside the alternatives, measured in turns within one run."""
