"""Kinds of layers: the parts, row layout, folding and mathematics of each."""
