"""Task types: targets, loss and metrics of each."""
