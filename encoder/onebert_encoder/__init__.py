"""The frozen base, the maths that serves and trains deltas, and the tokens that go in."""
