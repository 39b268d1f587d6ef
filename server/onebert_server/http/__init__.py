"""The HTTP layer: routes, bodies, problems, keys, limits."""
