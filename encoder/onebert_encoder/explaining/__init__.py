"""Which words and which parts of a delta an answer is owed to."""
