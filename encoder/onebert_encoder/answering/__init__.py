"""From logits to answers."""
