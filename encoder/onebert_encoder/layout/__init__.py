"""What a batch and a row look like to the kernels; knows no base."""
