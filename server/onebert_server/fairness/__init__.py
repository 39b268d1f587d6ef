"""Fairness between principals: shares of what the server holds, turns for its places, rates over time."""
