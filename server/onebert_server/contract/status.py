"""The status of every task of a server at one glance, and of one task with its last moves."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from onebert_server.contract.declared import Declared, Rule
from onebert_server.contract.tasks import TargetFacts, VerdictFacts


class LabelShift(Declared, frozen=True, kw_only=True):
    """The label whose share of the answers differs most from the reference."""

    label: str
    reference: Annotated[float, Rule("its share of the reference's rows")]
    live: Annotated[float, Rule("its share of the last full window")]


class TopScores(Declared, frozen=True, kw_only=True):
    """Answers by their top score."""

    edges: Annotated[list[float], Rule("upper bounds of the bins but the last")]
    reference: Annotated[list[int], Rule("rows of the reference by bin")]
    live: Annotated[list[int], Rule("answers of the window by bin")]


class Alarm(Declared, frozen=True, kw_only=True):
    """Answers that are not like the reference of their version."""

    _always = ("shift", "scores")

    since: datetime
    version: int
    words: Annotated[str, Rule("what differs: `other labels than its reference`, `less sure than its reference`")]
    shift: LabelShift | None = None
    scores: Annotated[TopScores | None, Rule("null where top scores are not compared")] = None


class Score(Declared, frozen=True, kw_only=True):
    """How good the trainer found a version."""

    metric: str
    value: float
    where: Annotated[str, Rule("the rows that it was measured on: `test`, `validation`, `5 folds`")]


class GateInForce(Declared, frozen=True, kw_only=True):
    """The gate of a task: the aliases that it is of, its rows and checks counted."""

    _always = ("aliases", "rows", "checks")

    aliases: Annotated[list[str] | None, Rule("null in the list of all tasks")] = None
    rows: Annotated[int | None, Rule("pinned rows; null in the list of all tasks")] = None
    checks: Annotated[int | None, Rule("checks that a version must pass; null in the list of all tasks")] = None


class KeptShare(Declared, frozen=True, kw_only=True):
    """How much of a task's answers is kept."""

    share: Annotated[float, Rule("probability with which an answer is kept")]
    days: Annotated[int, Rule("for how long")]


class Move(Declared, frozen=True, kw_only=True):
    """One move of an alias."""

    _always = ("reason",)

    at: datetime
    who: Annotated[str, Rule("the principal")]
    alias: str
    what: Annotated[str, Rule("in words: `1 → 2`, `shadow 5 ended`, `rolled back to 1`")]
    reason: Annotated[str | None, Rule("why it was made")] = None
    past_gate: Annotated[bool, Rule("whether it was forced past the gate")] = False
    failed: Annotated[list[str] | None, Rule("the checks that failed, of a move past the gate")] = None


class AliasInForce(Declared, frozen=True, kw_only=True):
    """An alias with the versions that answer it and the one that it can go back to."""

    _always = ("previous", "previous_target", "previous_words", "target")

    alias: str
    version: Annotated[int, Rule("of a split the one with the largest share")]
    words: Annotated[str, Rule("the whole meaning: `90 % 2, 10 % 4, shadow 5`")]
    target: Annotated[TargetFacts | None, Rule("null for one version alone")] = None
    previous: Annotated[int | None, Rule("the version that was live before, to which it rolls back")] = None
    previous_target: Annotated[TargetFacts | None, Rule("its target; null for one version alone")] = None
    previous_words: Annotated[str | None, Rule("the whole meaning that it rolls back to")] = None
    ungated: Annotated[list[int], Rule("versions that a gate does not check: they answer, or are older and did")]
    ends: Annotated[list[str], Rule("what a move to one version ends: `shadow 5`, `split 90/10`")]


class TaskStatus(Declared, frozen=True, kw_only=True):
    """A task; of a split, facts of a version are of the one with the largest share."""

    _always: ClassVar[tuple[str, ...]] = (
        *("base", "live", "created_at", "score", "a_minute", "p95", "abstained", "cut", "shift", "alarm", "gate"),
        *("kept", "feedback", "new_labels", "candidates", "last_move"),
    )

    name: str
    base: Annotated[str | None, Rule("name, or digest if this server has no such base; null: not read yet")] = None
    live: Annotated[AliasInForce | None, Rule("null: the task has no alias `live`")] = None
    created_at: Annotated[datetime | None, Rule("of the live version")] = None
    score: Annotated[Score | None, Rule("of the live version; null: not recorded, or not read yet")] = None
    unavailable: Annotated[dict[str, str], Rule("versions of the task that cannot be loaded, and why")]
    lacks: Annotated[
        dict[str, list[str]],
        Rule("by version of `live`, or newer, the targets that it was trained to keep and does not"),
    ]
    a_minute: Annotated[float | None, Rule("requests a minute, by the last five or so; null: none since the start")] = (
        None
    )
    p95: Annotated[float | None, Rule("seconds within which 95 of 100 of these were answered")] = None
    abstained: Annotated[float | None, Rule("share of their answers that abstained; null: no answers")] = None
    cut: Annotated[float | None, Rule("share of their answers whose text was cut; null: no answers")] = None
    shift: Annotated[LabelShift | None, Rule("null under 100 answers, or without a reference")] = None
    alarm: Annotated[Alarm | None, Rule("of the first version of `live` with an alarm")] = None
    gate: Annotated[GateInForce | None, Rule("null without one, or for a key that may not move its aliases")] = None
    kept: Annotated[KeptShare | None, Rule("null: no answers are kept")] = None
    feedback: Annotated[
        int | None, Rule("rows since the live version was made; null without one, or for a key that may not review")
    ] = None
    new_labels: Annotated[
        dict[str, int] | None,
        Rule(
            "rows of feedback by label that the newest version lacks, the 64 most frequent and `(other)` for the rest; "
            "null in the list of all"
        ),
    ] = None
    candidates: Annotated[list[VerdictFacts] | None, Rule("of `live`, with verdicts; null: none")] = None
    last_move: Annotated[Move | None, Rule("null for a key that may not move its aliases")] = None

    @property
    def worse(self) -> list[VerdictFacts]:
        """Verdicts of candidates that are proven worse."""
        return [each for each in self.candidates or () if each.verdict == "roll_back"]


class TaskInForce(TaskStatus, frozen=True, kw_only=True):
    """All that is in force for one task."""

    _always = (*TaskStatus._always, "decision", "next")

    aliases: list[AliasInForce]
    decision: Annotated[
        dict[str, Any] | None, Rule("thresholds, positives and the like of the live version; null: the type's own")
    ] = None
    moves: Annotated[list[Move], Rule("the last ten, the latest first; empty for a key that may not move aliases")]
    next: Annotated[str | None, Rule("a command that may be of use now")] = None


class StatusResponse(Declared, frozen=True, kw_only=True):
    """A page of the tasks, by name. Traffic, since its start, and alarms are of the server that was asked."""

    _always = ("next",)

    tasks: list[TaskStatus]
    next: Annotated[str | None, Rule("what `after` must be for the next page; null on the last one")] = None
