"""How a server process starts, listens and stops."""
