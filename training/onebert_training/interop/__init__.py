"""Converts deltas from and to PEFT adapters, and to plain Hugging Face checkpoints."""
