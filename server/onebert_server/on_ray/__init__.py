"""Runs a server on a Ray cluster: engine replicas and front ends are Ray Serve deployments."""
