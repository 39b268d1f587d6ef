"""Many runs from one recipe: skips finished runs, trains the others on a machine or a cluster, shows the results."""
