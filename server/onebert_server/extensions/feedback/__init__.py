"""Keeps texts of answers for tasks that ask for it, and records feedback on answers."""
