"""Options about data: the columns to read and the rows to use. Imports no torch, so that help is quick."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Self

from annotated_types import Ge, Gt, Lt
from typing_extensions import Doc

from onebert_store.command.options import ENCODING, LABEL_SEPARATOR, SHEET, TEXT, TEXT_PAIR
from onebert_store.file.manifest import TaskType
from onebert_store.tables.columns import Columns, remembered
from onebert_training.options import DATA, RECIPES

if TYPE_CHECKING:
    from onebert_store.tables.tables import Faults, Source


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
    sheet: Annotated[str | None, Doc(SHEET), DATA] = None
    label_separator: Annotated[str | None, Doc(LABEL_SEPARATOR), DATA] = None
    drop_unlabeled: Annotated[bool, Doc("Leave out rows that have no label."), DATA] = False
    drop_empty: Annotated[bool, Doc("Leave out rows that have no text."), DATA] = False

    @property
    def columns(self) -> Columns:
        return Columns(self.text, self.text_pair, self.label, self.label_separator)

    def read(self, data: str, faults: "Faults | None" = None) -> "Source":
        from onebert_store.tables.label_studio import plain_source  # noqa: PLC0415 - slow to import
        from onebert_store.tables.tables import read_source  # noqa: PLC0415

        return plain_source(read_source(data, self.encoding, faults, self.sheet), self.columns)

    def remembering(self, trained: Columns, source: "Source") -> Self:
        """These options with the columns that are `remembered` of a training, by the table of the first split."""
        return replace(self, **asdict(remembered(self.columns, trained, next(iter(source.tables.values())))))


@dataclass(frozen=True)
class DataOptions(ReadOptions):
    """How the files are read, what they mean, and which of their rows are used."""

    task_type: Annotated[
        TaskType | None,
        Doc("Else from labels.json, the columns or the labels: lists are multi_label, fractions are a regression."),
        DATA,
    ] = None
    train_rows: Annotated[
        int | None, Ge(2), Doc("Train on at most so many rows, drawn evenly over the labels."), DATA
    ] = None
    validation_rows: Annotated[
        int | None, Ge(1), Doc("Validate on at most so many rows, drawn evenly over the labels."), DATA, RECIPES
    ] = None
    validation_share: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("Validate on this share of the training rows; a validation split of the data is then the test split."),
        DATA,
    ] = None
    more: Annotated[
        str | None,
        Doc("More training rows, such as feedback: a file that --data takes. A text that both have gets its labels."),
        DATA,
    ] = None
    new_label_rows: Annotated[
        int | None,
        Ge(1),
        Doc("Learn a label that added rows alone have from so many of them on, else 5; rows of others are left out."),
        DATA,
    ] = None
