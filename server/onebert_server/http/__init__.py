"""The HTTP edge: routes, bodies, problems, keys, limits."""
