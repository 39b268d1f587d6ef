"""What each method trains, from the name that a user writes to the tensors."""
