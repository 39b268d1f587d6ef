"""What lies between the matrix products: one signature, and one class for each way to compute it."""
