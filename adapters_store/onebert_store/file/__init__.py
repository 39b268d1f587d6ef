"""The delta file: parses bytes into a Delta, strictly, and writes them."""
