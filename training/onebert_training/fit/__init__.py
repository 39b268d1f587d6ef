"""Training runs: settings, state, the loop, and what a finished run leaves."""
