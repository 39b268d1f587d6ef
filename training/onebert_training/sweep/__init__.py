"""Many runs from one recipe: which are left to do, how they share a machine or a cluster, and what came of them."""
