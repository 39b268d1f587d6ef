"""Fairness between principals: shares of what the server holds, turns for what it does, rates over time."""
