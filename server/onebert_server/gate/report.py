"""The report of a gate: the compared versions by their digests, the numbers, and each check; it holds no text."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from onebert_server.gate.rules import MAX_MUST, MAX_SLICES, Cell, Right
from onebert_store.file.fields import Finite, Line, Strict

# Fields that say what a report is of.
COMPARED = ("task", "candidate", "live", "rules", "rows")
# Wrong rows that a report lists.
MOST_WRONG = 20

Count = Annotated[int, Field(ge=0, lt=2**31)]
Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class Side(Strict):
    """One of the two versions that are compared."""

    version: Annotated[int, Field(ge=1, lt=2**31)]
    digest: Digest


class SliceCounts(Strict):
    """The rows with one value in a column, and how many of them each side answers rightly."""

    column: Line
    value: Cell
    rows: Annotated[int, Field(ge=1, lt=2**31)]
    right: Count
    live_right: Count

    @model_validator(mode="after")
    def _within(self) -> Self:
        if max(self.right, self.live_right) > self.rows:
            raise ValueError("a slice has more right answers than rows")
        return self


class Numbers(Strict):
    """The numbers of the pinned rows; `flips` and `slices` are missing without a live version."""

    rows: Annotated[int, Field(ge=1, lt=2**31)]
    scores: dict[Line, Annotated[Finite, Field(ge=-1, le=1)]] = Field(default_factory=dict, max_length=8)
    flips: Count | None = None
    slices: list[SliceCounts] = Field(default_factory=list, max_length=MAX_SLICES)

    @model_validator(mode="after")
    def _within(self) -> Self:
        if (self.flips or 0) > self.rows:
            raise ValueError("there are more flips than rows")
        return self


class Wrong(Strict):
    """A wrong answer: the number of its row, or of its text in `must`, from 1; null: abstained, or no live version."""

    row: Annotated[int, Field(ge=1, lt=2**31)]
    right: Right | None
    candidate: Right | None
    live: Right | None = None


class Check(Strict):
    """One check; without a `value`, because nobody ran the rows, it fails."""

    name: str
    bound: Finite
    value: Finite | None
    passed: bool


class Report(Strict):
    """The findings of a gate.

    `rules` is the digest of the gate, `rows` the digest of the pinned rows. A server that gets a report computes the
    checks from the numbers again.
    """

    task: Line
    candidate: Side
    live: Side | None = None
    rules: Digest
    rows: Digest | None = None
    numbers: Numbers | None = None
    must: list[Wrong] = Field(default_factory=list, max_length=MAX_MUST)
    worst: list[Wrong] = Field(default_factory=list, max_length=MOST_WRONG)
    checks: list[Check] = Field(default_factory=list, max_length=16)

    @property
    def refusal(self) -> str:
        """The detail of a GateFailed."""
        return f"{self.task}@{self.candidate.version} does not pass its gate: {'; '.join(self.failed)}"

    @property
    def failed(self) -> list[str]:
        """One phrase for each check that failed."""
        return [
            f"{one.name} has no number"
            if one.value is None
            else f"{one.name} is {one.value:.4g}, bound {one.bound:.4g}"
            for one in self.checks
            if not one.passed
        ]
