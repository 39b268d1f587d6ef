"""Question → sequences: one sequence for the engine to run, or one for each window of a long text.

A question is one input for one version. In the engine's process `expand` makes its sequences, each with a slot and a
role. The process that has the text, which may be a front end, reads their logits (`reading.py`).
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.scores import Logits
from onebert_encoder.answering.windows import whole_window, window_of
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Cut, Pieces
from onebert_encoder.text.windows import window_cuts
from onebert_server.versions.version import Version
from onebert_store.errors import WholeTextNeeded
from onebert_store.registry.records import Payer

if TYPE_CHECKING:
    from onebert_server.answering.tokenizing import Split
    from onebert_server.engine.host import Slot

# Roles of a sequence: its logits are the answer, or they cover one window of the text.
ANSWER, WINDOW = "answer", "window"


class Planned(NamedTuple):
    """One sequence to run: its pieces of the input, the slot of its row, and its role."""

    kept: Cut
    slot: "Slot"
    role: str = ANSWER


class Computed(NamedTuple):
    """The logits of a planned sequence: float32 [labels], or [tokens, labels] for a per-token task."""

    kept: Cut
    role: str
    logits: Logits


class ComputedQuestion(NamedTuple):
    """A question whose request has ended; `version` answers it from this part of the request's logits.

    `shadows` are the further versions of its alias, pinned: whoever takes the question gives their pins back. `payer`
    pays what they compute.
    """

    version: Version
    shadows: Sequence[Version]
    planned: Sequence[Planned]
    input: int
    inputs: "Split"
    asked: Asked
    request: Future[list[Logits]]
    part: slice
    payer: Payer | None


def expand(pieces: Pieces, version: Version, tokenizer: Tokenizer, asked: Asked) -> Sequence[Planned]:
    """Returns the sequences to run: the beginning of the input, or each window of it if it is read by windows.

    There are none if this base's tokenizer finds no token in it.

    Raises:
        WholeTextNeeded: the text was split without its end.
    """
    if not any(pieces.lengths):
        return ()
    facts = version.facts
    tokenizer = tokenizer.reading(facts.pooling)
    window = window_of(facts, facts.max_length, asked)
    if window is None:
        kept = tokenizer.fit(pieces, facts.max_length)
        if not asked.whole or not tokenizer.measure(pieces, kept)[1]:
            return (Planned(kept, version.slot),)
        window = whole_window(facts, facts.max_length)
    cuts = window_cuts(tokenizer, pieces, window.tokens, window.overlap)
    if any(stop > len(ids) for ids, (_, stop) in zip(pieces.ids, cuts[-1], strict=True)):
        raise WholeTextNeeded("a text was sent without its end, and is read to its end")
    return [Planned(kept, version.slot, WINDOW) for kept in cuts]
