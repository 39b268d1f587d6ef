"""What is trained beside what, and which of them is kept."""
