"""Methods: what each one trains, from the name that a user writes to the tensors of a delta."""
