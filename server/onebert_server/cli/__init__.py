"""The commands that run a server or talk to one."""
