"""The report of a gate: the compared versions by their digests, the numbers, and each check; it holds no text."""

from pydantic import Field

from onebert_server.extensions.gate.rules import Right
from onebert_store.comparison import Outcomes
from onebert_store.file.fields import Strict

# Wrong rows that a report lists.
MAX_WRONG = 20


class Side(Strict):
    """One of the two versions that are compared."""

    version: int
    digest: str


class SliceCounts(Strict):
    """The rows with one value in a column, counted by which version answers them rightly.

    `wins` counts rows that the candidate alone answers rightly, `losses` rows that live alone answers rightly.
    """

    column: str
    value: str
    both: int
    wins: int
    losses: int
    neither: int

    @property
    def outcomes(self) -> Outcomes:
        return Outcomes(self.both, self.wins, self.losses, self.neither)

    @property
    def rows(self) -> int:
        return self.outcomes.rows


class Numbers(Strict):
    """The numbers of the pinned rows; without a live version `compared`, `flips` and `slices` are missing.

    `compared` counts the rows whose labels the live version has: `flips` and `slices` are of them. `trained_on` counts
    the rows whose texts the candidate was trained on.
    """

    rows: int
    trained_on: int = 0
    compared: int | None = None
    scores: dict[str, float] = Field(default_factory=dict)
    flips: int | None = None
    slices: list[SliceCounts] = Field(default_factory=list)


class Wrong(Strict):
    """A wrong answer: the number of its row, or of its text in `must`, from 1; null: abstained, or no live version."""

    row: int
    right: Right | None
    candidate: Right | None
    live: Right | None = None


class Check(Strict):
    """One check of a rule."""

    name: str
    bound: float
    value: float
    passed: bool


class Report(Strict):
    """The findings of a gate; `rules` is the digest of the gate, `rows` the digest of the pinned rows."""

    task: str
    candidate: Side
    live: Side | None
    rules: str
    rows: str | None
    numbers: Numbers | None
    must: list[Wrong]
    worst: list[Wrong]
    checks: list[Check]

    @property
    def failed(self) -> list[str]:
        """One phrase for each check that failed."""
        return [
            f"{check.name} is {check.value:.4g}, bound {check.bound:.4g}" for check in self.checks if not check.passed
        ]
