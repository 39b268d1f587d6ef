"""The frozen base, the maths that serves and trains deltas, and the tokenizer."""
