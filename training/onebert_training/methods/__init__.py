"""Methods: from the name that a user writes to the trained parts and the tensors of a delta."""
