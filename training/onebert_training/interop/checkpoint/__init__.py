"""Converts a fine-tuned Hugging Face checkpoint to a delta."""
