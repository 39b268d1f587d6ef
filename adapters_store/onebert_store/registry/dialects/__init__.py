"""What differs between databases: one class for each, behind one protocol; no other file knows SQLite or PostgreSQL."""
