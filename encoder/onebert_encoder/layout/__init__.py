"""The form of a batch and a row that the kernels read; imports no base."""
