"""Who asks, by which key, and what that one may do."""
