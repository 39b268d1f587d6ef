"""Reads text files row by row, and finds their encoding and separator."""
