"""A server on a Ray cluster: replicas with the engine, and front ends, are deployments of Ray Serve."""
