"""From logits to answers: bounds, results and their reading, and what is shown or noted of each."""
