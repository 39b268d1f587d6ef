"""Gates: what a version must show before an alias moves to it."""
