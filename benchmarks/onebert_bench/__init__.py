"""`onebert bench` and the scripts behind the published results."""
