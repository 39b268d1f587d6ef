"""Fold, gather, encode: the mathematics that training and serving share."""
