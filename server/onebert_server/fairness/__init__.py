"""Fairness between principals: shares of what the server holds, round robin for its places, rates over time."""
