"""From requests to answers: tokenize, compute through the engine, read the logits."""
