"""The operations between the matrix products: one protocol, and one class per implementation."""
