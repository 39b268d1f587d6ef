"""How a batch is computed on this machine: products with shared weights, and the kernels between them."""
