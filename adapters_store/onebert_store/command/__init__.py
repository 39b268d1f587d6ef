"""The `onebert` command: its root, the terminal, child processes."""
