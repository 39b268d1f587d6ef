"""The peers as processes: which there are, where they are installed, how they are run and stopped."""
