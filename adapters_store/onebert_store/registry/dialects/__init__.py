"""The databases a registry can use: one class each, behind one protocol; no other file knows SQLite or PostgreSQL."""
