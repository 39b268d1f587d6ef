"""Processes that take HTTP and tokenize beside the engine's process, and how they speak with it."""
