"""The commands that need a server, or are one."""
