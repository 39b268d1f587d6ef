"""Tells a receiver that the operator names of moves of aliases, failed gates and alarms."""
