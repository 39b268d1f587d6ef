"""Notifies the operator's receiver of alias moves, failed gates and alarms."""
