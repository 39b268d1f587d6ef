"""Notifies the operator's receiver of changes of aliases and tasks, failed gates and alarms."""
