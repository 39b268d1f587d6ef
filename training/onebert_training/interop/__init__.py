"""To and from other people's files: PEFT adapters and plain Hugging Face checkpoints."""
