"""Exact heads on the vectors of the frozen base; they serve as a yardstick and as a start for training."""
