"""What an evaluated delta knows and does not know."""
