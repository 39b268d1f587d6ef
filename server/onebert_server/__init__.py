"""Serves every task of one base from one batch, over HTTP."""
