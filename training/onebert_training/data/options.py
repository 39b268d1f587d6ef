"""A user's options about data: the columns to read and the rows to use. No torch, so that help is quick."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Lt
from typing_extensions import Doc

from onebert_store.command.options import ENCODING, TEXT, TEXT_PAIR
from onebert_store.file.manifest import TaskType
from onebert_store.tables.columns import Columns
from onebert_training.options import DATA


@dataclass(frozen=True)
class ReadOptions:
    """How the files are read."""

    text: Annotated[str | None, Doc(TEXT), DATA] = None
    text_pair: Annotated[str | None, Doc(TEXT_PAIR), DATA] = None
    label: Annotated[
        str | None,
        Doc("Column of the label, or a,b,c: columns of 0 and 1, one for each label; else found by name."),
        DATA,
    ] = None
    encoding: Annotated[str | None, Doc(ENCODING), DATA] = None
    drop_unlabeled: Annotated[bool, Doc("Leave out rows that have no label."), DATA] = False

    @property
    def columns(self) -> Columns:
        """Which columns hold what."""
        return Columns(self.text, self.text_pair, self.label)


@dataclass(frozen=True)
class DataOptions(ReadOptions):
    """How the files are read, what they mean, and which of their rows are used."""

    task_type: Annotated[
        TaskType | None,
        Doc("Else from labels.json, the columns or the labels: a|b is multi_label, fractions are a regression."),
        DATA,
    ] = None
    train_rows: Annotated[
        int | None, Ge(2), Doc("Train on at most so many rows, drawn evenly over the labels."), DATA
    ] = None
    validation_rows: Annotated[
        int | None, Ge(1), Doc("Validate on at most so many rows, drawn evenly over the labels."), DATA
    ] = None
    validation_share: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("Validate on this share of the training rows; a validation split of the data is then the test split."),
        DATA,
    ] = None
