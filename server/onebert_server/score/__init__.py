"""Offline classification: files of any size through the engine's passes, without HTTP."""
