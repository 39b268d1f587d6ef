"""Kept texts of answers, and the feedback on answers: a database beside the registry's tables, texts encrypted."""
