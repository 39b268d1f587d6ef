"""Trains several candidates side by side and keeps one."""
