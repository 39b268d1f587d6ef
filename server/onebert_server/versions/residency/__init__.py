"""Which versions are in memory: what is loaded next, how it is proved, and what makes room for it."""
