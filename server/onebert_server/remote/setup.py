"""The bases of the process with the engine, for front ends: their tokenizers and longest sequences."""

from collections.abc import Mapping

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.answering.tokenizing import Splitter
from onebert_server.remote import wire


def setup_of(splitters: Mapping[str, Splitter]) -> wire.Setup:
    """Builds what a front end gets at its start."""
    return {base: (one.tokenizer.dumps(), one.max_length) for base, one in splitters.items()}


def splitters_of(setup: wire.Setup) -> dict[str, Splitter]:
    """Rebuilds the splitters in a front end."""
    return {base: Splitter(Tokenizer.loads(tokenizer), most) for base, (tokenizer, most) in setup.items()}
