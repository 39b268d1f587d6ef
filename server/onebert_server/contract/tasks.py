"""The base, tasks, versions and aliases."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from msgspec import field

from onebert_server.contract.declared import STRICT, Declared, Rule


class OneBase(Declared, frozen=True, kw_only=True):
    """A base."""

    name: str
    digest: str
    model_type: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_length: int
    num_parameters: int
    poolings: Annotated[list[str], Rule("those of a text's tokens; `none` is always possible besides")]
    dtype: Annotated[str, Rule("what the encoder computes in")]
    device: str
    kernels: Annotated[
        str,
        Rule(
            "what computes between the matrix products: native, with the instructions that a wheel's library is "
            "compiled for, plain, or gpu and what it chose"
        ),
    ]
    batch_invariant: Annotated[bool, Rule("whether a text gets the same bits alone and in every batch")]


class BaseFacts(OneBase, frozen=True, kw_only=True):
    """The base; of several bases the first one."""

    _document = "BaseResponse"

    bases: Annotated[list[OneBase] | None, Rule("if the server has several: each of them, the first one, too")] = None


class Uploaded(Declared, frozen=True, kw_only=True):
    """The version that holds an uploaded delta."""

    task: str
    version: int
    digest: str


class Pushed(Uploaded, frozen=True, kw_only=True):
    """The version of an uploaded delta; `created`, from the reply's status, is False if the task had the content."""

    created: bool = True


Previous = Annotated[int, Rule("where the alias pointed before; that version may be deleted by now")]


class ShadowShare(Declared, frozen=True):
    """A version that computes this percentage of the requests, and whose answers no caller gets."""

    _config = STRICT

    version: Annotated[int, Rule(ge=1, lt=2**31)]
    percent: Annotated[int, Rule(ge=1, le=100)] = 100


class TargetFacts(Declared, frozen=True, omit_defaults=True):
    """The meaning of an alias that is more than one version."""

    split: Annotated[dict[str, int], Rule("percentage of the requests by version, 100 together")]
    sticky: Annotated[str | None, Rule("`principal` or `header:NAME`: one key, one version; null: by chance")] = None
    shadow: list[ShadowShare] | None = None
    tag: Annotated[str | None, Rule("as `If-Match` takes it, between quotes")] = None


class AliasPlace(Declared, frozen=True):
    """The target of an alias."""

    _document = "AliasResponse"
    _always = ("previous", "target", "previous_target")

    task: str
    alias: str
    version: Annotated[int, Rule("of a split the one with the largest share")]
    previous: Previous | None = None
    target: TargetFacts | None = None
    previous_target: TargetFacts | None = None
    what: Annotated[str | None, Rule("of a move, in words: `1 → 2, shadow 5 ended`")] = None
    gate: Annotated[list[dict[str, Any]] | None, Rule("of a move: the reports of versions that passed")] = None


class LabelPair(Declared, frozen=True):
    """Answers for which a version said `label`, and its shadow `shadow`; `(none)`: not this label."""

    label: str
    shadow: str
    answers: int


class ShadowAgreement(Declared, frozen=True):
    """How often a version and its shadow answered alike, on the server that was asked, since it started."""

    version: int
    shadow: int
    answers: int
    same: Annotated[int, Rule("answers with the same labels")]
    left_out: Annotated[int, Rule("questions that the shadow did not answer: no room, or an error")]
    labels: Annotated[list[LabelPair], Rule("the most frequent pairs first")]


class ShadowsResponse(Declared, frozen=True):
    """The versions that answer an alias, each with each of its shadows."""

    task: str
    alias: str
    shadows: list[ShadowAgreement]


class VerdictFacts(Declared, frozen=True):
    """How a candidate, a shadow or a smaller share, has done beside the version with the largest share.

    Counts are identifiers, by their first feedback of the kind outcome, that both versions have answered; a pair is one
    that exactly one version got right.
    """

    version: int
    wins: Annotated[int, Rule("pairs that the candidate got right")]
    losses: int
    alike: Annotated[int, Rule("identifiers that both got right, or neither")]
    better: Annotated[float, Rule("e-value: evidence that the candidate wins more than half of the pairs")]
    worse: Annotated[float, Rule("e-value: evidence that it wins less than half")]
    verdict: Annotated[str, Rule(one_of=("promote", "roll_back", "not_yet"))]


class VerdictsResponse(Declared, frozen=True):
    """Verdicts by feedback of the kind outcome, counted when they are asked for, and right at any time."""

    task: str
    alias: str
    version: Annotated[int, Rule("the one with the largest share, beside which candidates are judged")]
    level: Annotated[float, Rule("a candidate is proven better or worse at an e-value of candidates / level")]
    verdicts: list[VerdictFacts]


Targets = Annotated[dict[str, TargetFacts], Rule("of the aliases that mean more than one version")]


class TaskSummary(Declared, frozen=True):
    """A task, its version numbers, where its aliases point, and where moved ones pointed before."""

    _always = ("targets",)

    name: str
    aliases: dict[str, int]
    previous: dict[str, Previous]
    versions: list[int]
    targets: Targets = field(default_factory=dict)
    digests: Annotated[dict[str, str], Rule("of the versions that aliases mean; of all without an alias")] = field(
        default_factory=dict
    )


class TasksResponse(Declared, frozen=True):
    """A page of the tasks, by name."""

    _always = ("next",)

    tasks: list[TaskSummary]
    next: Annotated[str | None, Rule("what `after` must be for the next page; null on the last one")] = None


class VersionSummary(Declared, frozen=True, kw_only=True):
    """One version of a task, and how far it is in this server's memory."""

    _always = ("method", "task_type", "labels")

    version: int
    digest: str
    status: Annotated[
        str,
        Rule(
            "resident answers at once, unavailable not at all; others are loaded when asked for",
            one_of=("registered", "loading", "resident", "evicted", "unavailable"),
        ),
    ]
    reason: Annotated[str | None, Rule("why it is unavailable, or what is wrong with its stored file")] = None
    retry_in: Annotated[float | None, Rule("seconds until an unavailable one is tried again")] = None
    size: Annotated[int, Rule("bytes of the delta file")]
    created_at: datetime
    method: Annotated[str | None, Rule("this and what follows: null where no manifest can be read")] = None
    task_type: str | None = None
    labels: int | None = None


class VersionFacts(VersionSummary, frozen=True, kw_only=True):
    """One version with its manifest."""

    task: str
    manifest: dict[str, Any]


class TaskFacts(Declared, frozen=True):
    """A task with a summary of each version, oldest first."""

    _always: ClassVar[tuple[str, ...]] = ("targets",)

    name: str
    aliases: dict[str, int]
    previous: dict[str, Previous]
    versions: list[VersionSummary]
    targets: Targets = field(default_factory=dict)


class TaskResponse(TaskFacts, frozen=True):
    """A task, its aliases as in the list of tasks, and a page of its versions, oldest first."""

    _always = ("targets", "next")

    next: Annotated[int | None, Rule("what `after` must be for the next page; null on the last one")] = None
