"""Explains an answer by words and by parts of the delta."""
