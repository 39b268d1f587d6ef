"""The rules of a gate, from TOML or JSON, and the labeled rows that they are applied to."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from onebert_server.http.schemas.texts import TextPair
from onebert_store.errors import InvalidInput
from onebert_store.file import strict_json
from onebert_store.file.fields import Finite, Line, Strict
from onebert_store.file.manifest import TaskType
from onebert_store.registry.names import LIVE, check_alias

# Rows that a server keeps for a gate, and texts in its rules.
MAX_ROWS, MAX_MUST = 2000, 64
# Aliases that a gate is for.
MAX_ALIASES = 16
# Columns of slices, and their values. A column with a value for each row has no slices.
MAX_COLUMNS, MAX_SLICES = 8, 256

Cell = Annotated[str, Field(max_length=256)]
Share = Annotated[float, Field(ge=0, le=1)]
Correlation = Annotated[float, Field(ge=-1, le=1)]
# Spans of a row.
MAX_SPANS = 256
_Place = Annotated[int, Field(ge=0)]
# JSON has lists alone.
EntitySpan = Annotated[tuple[_Place, _Place, Line], Field(strict=False)]
Right: TypeAlias = Line | list[Line] | Annotated[list[EntitySpan], Field(max_length=MAX_SPANS)] | Finite


class Must(TextPair):
    """A text that every version must answer with this label, or of a multi_label task with exactly these labels."""

    label: Line | list[Line]


class PinnedRow(TextPair):
    """A labeled row with its cells in the columns of slices; the label is a number for a regression.

    For a token task it is a list of spans `[start, end, label]` in code points.
    """

    label: Right
    slices: dict[Line, Cell] = Field(default_factory=dict, max_length=MAX_COLUMNS)


class Floors(Strict):
    """The least that each metric may be on the pinned rows."""

    accuracy: Share | None = None
    macro_f1: Share | None = None
    micro_f1: Share | None = None
    entity_f1: Share | None = None
    pearson: Correlation | None = None
    spearman: Correlation | None = None


class Ceilings(Strict):
    """The most that a number may be on the pinned rows."""

    flips: Annotated[Share, Field(description="share of rows that live answers differently")]


class Slices(Strict):
    """Rows that share a value of a column."""

    columns: Annotated[list[Line], Field(min_length=1, max_length=MAX_COLUMNS)]
    worst_drop: Annotated[
        Share, Field(description="by how much the share of right answers may fall in a slice, against live")
    ]


# The metrics of the types that have a gate.
_WHOLE = ("accuracy", "macro_f1", "micro_f1")
METRICS: Mapping[str, Sequence[str]] = {
    "single_label": _WHOLE,
    "multi_label": _WHOLE,
    "token": ("entity_f1",),
    "regression": ("pearson", "spearman"),
}
_WORDS = {
    "single_label": "a text",
    "multi_label": "a list of texts",
    "token": "a list of spans [start, end, label]",
    "regression": "a number",
}
_FITS: Mapping[str, Callable[[Right], bool]] = {
    "single_label": lambda label: isinstance(label, str),
    "multi_label": lambda label: isinstance(label, list) and all(isinstance(item, str) for item in label),
    "token": lambda label: isinstance(label, list) and not any(isinstance(item, str) for item in label),
    "regression": lambda label: isinstance(label, float),
}


def _alias(name: str) -> str:
    check_alias(name)
    return name


def _floors(floors: Floors) -> Floors:
    if not floors.model_fields_set:
        raise ValueError("must name a metric")
    return floors


AliasName = Annotated[str, AfterValidator(_alias)]


class Gate(Strict):
    """The rules for a version before an alias moves to it.

    `min`, `max` and `slices` are about the pinned rows, identified by the digest in `pinned`.
    """

    aliases: list[AliasName] = Field(default_factory=lambda: [LIVE], min_length=1, max_length=MAX_ALIASES)
    pinned: Annotated[
        str | None, Field(pattern="^sha256:[0-9a-f]{64}$", description="digest of the rows: `digest_of_rows`")
    ] = None
    min: Annotated[Floors, AfterValidator(_floors)] | None = None
    max: Ceilings | None = None
    slices: Slices | None = None
    must: list[Must] = Field(default_factory=list, max_length=MAX_MUST)

    @model_validator(mode="after")
    def _checks_something(self) -> "Gate":
        if not (self.needs_rows or self.must):
            raise ValueError("a gate has min, max, slices or must")
        return self

    @property
    def floors(self) -> dict[str, float]:
        return {} if self.min is None else self.min.model_dump(exclude_none=True)

    @property
    def compares(self) -> bool:
        """Whether a check needs the answers of the live version."""
        return self.max is not None or self.slices is not None

    @property
    def checks(self) -> int:
        """How many checks a version must pass: each floor, each ceiling, the slices, and all of `must` as one."""
        ceilings = 0 if self.max is None else len(self.max.model_dump(exclude_none=True))
        return len(self.floors) + ceilings + (self.slices is not None) + bool(self.must)

    @property
    def needs_rows(self) -> bool:
        return self.min is not None or self.compares

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON of the rules, with `pinned`."""
        return _digest(self.model_dump(exclude_defaults=True))

    def check_type(self, task_type: TaskType) -> None:
        """Raises InvalidInput if tasks of this type have no such numbers."""
        if task_type not in METRICS:
            raise InvalidInput(f"a {task_type} task has no gate: a question may have several right answers")
        number, known = task_type == "regression", METRICS[task_type]
        if wrong := [name for name in self.floors if name not in known]:
            raise InvalidInput(f"min.{wrong[0]}: the metrics of a {task_type} task are {', '.join(known)}")
        if number and (self.compares or self.must):
            raise InvalidInput("the numbers of a regression are neither right nor wrong: its gate has min alone")
        if task_type == "token" and self.must:
            raise InvalidInput("must is about labels of whole texts: the gate of a token task has min, max and slices")

    def check_rows(self, rows: Sequence[PinnedRow], task_type: TaskType) -> None:
        """Raises InvalidInput if rows do not have the labels or slices that the gate's checks need."""
        labels = [*(row.label for row in rows), *(example.label for example in self.must)]
        if not all(_FITS[task_type](label) for label in labels):
            raise InvalidInput(f"a label of a {task_type} task is {_WORDS[task_type]}")
        columns = self.slices.columns if self.slices else ()
        for column in columns:
            if any(column not in row.slices for row in rows):
                raise InvalidInput(f"a row has no {column}, which the gate's slices are of")
        if len({(column, row.slices[column]) for column in columns for row in rows}) > MAX_SLICES:
            raise InvalidInput(f"the columns of slices have over {MAX_SLICES} values")


def digest_of_rows(rows: Sequence[PinnedRow]) -> str:
    """The SHA-256 of the canonical JSON of rows, in their order."""
    return _digest([row.model_dump(exclude_defaults=True) for row in rows])


def pin(gate: Gate, rows: Sequence[PinnedRow]) -> Gate:
    """Returns the gate with the digest of its rows; raises InvalidInput if it is of other rows, or is not complete."""
    if not rows:
        if gate.needs_rows:
            raise InvalidInput("min, max and slices are about rows, and there are none")
        return gate
    if not gate.needs_rows:
        raise InvalidInput("rows are for min, max and slices, and this gate has none of them")
    digest = digest_of_rows(rows)
    if gate.pinned not in (None, digest):
        raise InvalidInput(f"the gate is pinned to other rows: these have the digest {digest}")
    return gate.model_copy(update={"pinned": digest})


def _digest(value: object) -> str:
    return f"sha256:{hashlib.sha256(strict_json.encode(value).encode()).hexdigest()}"
