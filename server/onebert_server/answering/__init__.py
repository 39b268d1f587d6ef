"""From questions to answers: tokenizing, computing through the engine, reading logits."""
