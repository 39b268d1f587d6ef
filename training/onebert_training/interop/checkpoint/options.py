"""The options of `onebert import` for fine-tuned checkpoints. Imports no torch, so that help is quick."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from typing_extensions import Doc

from onebert_store.command.options import ENCODING, TEXT, TEXT_PAIR, Panel
from onebert_store.tables.columns import Columns
from onebert_training.fit.settings import DEFAULT_METHOD

CHECKPOINT = Panel("Fine-tuned checkpoint")


@dataclass(frozen=True)
class CheckpointOptions:
    """The texts on which a delta and its checkpoint are compared, and the required agreement."""

    data: Annotated[
        str | None,
        Doc("Texts to compare answers on: what `onebert train` takes as --data; no labels needed."),
        CHECKPOINT,
    ] = None
    distil: Annotated[
        str | None,
        Doc(
            "Texts to learn the answers on where no rank gives them, read as --data; without --data a fifth of them is "
            "held out to compare on."
        ),
        CHECKPOINT,
    ] = None
    method: Annotated[str, Doc("What --distil trains beside the head."), CHECKPOINT] = DEFAULT_METHOD
    epochs: Annotated[
        int | None, Ge(1), Doc("Passes of --distil over its texts; else as `onebert train`."), CHECKPOINT
    ] = None
    text: Annotated[str | None, Doc(TEXT), CHECKPOINT] = None
    text_pair: Annotated[str | None, Doc(TEXT_PAIR), CHECKPOINT] = None
    encoding: Annotated[str | None, Doc(ENCODING), CHECKPOINT] = None
    agree: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc("Share of texts (of words in a token task) that shall have the checkpoint's answer."),
        CHECKPOINT,
    ] = 0.99
    max_difference: Annotated[
        float | None,
        Ge(0),
        Doc("Largest difference of any probability (of any number of a regression) that a text may have; else any."),
        CHECKPOINT,
    ] = None
    max_rank: Annotated[
        int | None, Ge(1), Doc("Highest rank of any matrix's difference; else what a file can hold."), CHECKPOINT
    ] = None

    @property
    def columns(self) -> Columns:
        return Columns(self.text, self.text_pair)
