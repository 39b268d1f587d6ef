"""Makes a delta of a fine-tuned Hugging Face checkpoint."""
