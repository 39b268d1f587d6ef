"""Façades: other products' wire formats, mapped onto this server's answers."""
