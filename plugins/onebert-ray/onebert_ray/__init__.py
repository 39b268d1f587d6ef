"""Runs a server on a Ray cluster: engine replicas and front ends are Ray Serve deployments."""

# Sets the variables that Ray reads when it is imported.
from onebert_store.command import cluster  # noqa: F401
