"""Processes that take HTTP and tokenize beside the process with the engine, and what they ask of it."""
