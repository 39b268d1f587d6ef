"""The Model Context Protocol: tools of agents for the tasks that a key may ask."""
