"""Training runs: settings, state, the loop, and the results."""
