"""Starts, runs and stops a server process."""
