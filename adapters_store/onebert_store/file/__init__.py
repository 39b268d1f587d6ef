"""The delta file: bytes to Delta and back, strictly."""
