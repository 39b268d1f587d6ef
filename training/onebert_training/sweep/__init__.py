"""Runs a recipe: skips finished runs, trains the others on one machine or a cluster, shows the results."""
