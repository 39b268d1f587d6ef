"""The Model Context Protocol: the tasks that a key may ask as tools of agents."""
