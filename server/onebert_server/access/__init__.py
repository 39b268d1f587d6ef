"""Access: keys, the principals behind them, and the actions that each principal may do."""
