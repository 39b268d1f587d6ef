"""Exact heads on the vectors of the frozen base; they serve as a baseline and as a start for training."""
