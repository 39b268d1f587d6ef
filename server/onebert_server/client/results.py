"""The types of the client's results, one per kind of reply; unknown fields of newer servers are ignored."""

from datetime import datetime
from typing import Any

from msgspec import Struct, to_builtins


def as_dict(value: Struct) -> dict[str, Any]:
    """Converts any type below to JSON values; fields of a result that are None are left out."""
    fields: dict[str, Any] = to_builtins(value)
    return fields


class LabeledSpan(Struct, frozen=True):
    """A word or an entity: `text[start:end]` in code points, its label and the label's probability."""

    start: int
    end: int
    label: str
    score: float


class AnswerSpan(Struct, frozen=True):
    """An answer in a question's context: `context[start:end]` in code points, with its probability."""

    start: int
    end: int
    text: str
    score: float


class WordEffect(Struct, frozen=True):
    """The effect of the word `text[start:end]` (code points) on an answer; `field` is `text` or `text_pair`.

    The effect is the score of the answer's label minus that score without the word.
    """

    field: str
    start: int
    end: int
    effect: float


class Explanation(Struct, frozen=True):
    """The effect of each word on the score of `label`, in text order; a long text groups neighboring words.

    The method is `occlusion`: classify again without each word.
    """

    method: str
    label: str
    words: list[WordEffect]


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer; fields that do not apply to the task type are None.

    Attributes:
        label: the most likely label; for a regression the name of its first output.
        score: the probability of `label`; for a regression the value.
        scores: label -> probability, best first; for a regression output -> value.
        labels: the labels over their thresholds, best first; None without thresholds.
        words, entities: token tasks; entities only with BIO labels.
        answers: span tasks: the answers, best first.
        abstained: the task does not know the answer; None if it has no abstention rule.
        energy: -T logsumexp(logits / T), high for inputs unlike the training data; None unless requested.
        tokens: of the input, with special tokens.
        windows: number of windows; None without windows.
    """

    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    labels: list[str] | None = None
    words: list[LabeledSpan] | None = None
    entities: list[LabeledSpan] | None = None
    answers: list[AnswerSpan] | None = None
    abstained: bool | None = None
    energy: float | None = None
    tokens: int | None = None
    truncated: bool | None = None
    windows: int | None = None
    explanation: Explanation | None = None


class ResultError(Struct, frozen=True):
    """Why a task has no answer; `code` is from docs/reference/errors.md."""

    code: str
    title: str
    detail: str


class TaskResult(Result, frozen=True, kw_only=True, omit_defaults=True):
    """One answer with the task, the version and the delta's digest.

    With an `error` the answer's fields are None, and the version's too if it was not resolved in time.
    """

    task: str
    version: int | None = None
    digest: str | None = None
    error: ResultError | None = None


class Results(Struct, frozen=True):
    """The answers of a request for one task."""

    results: list[Result]
    task: str
    version: int
    digest: str


class TaskResults(Struct, frozen=True):
    """The answers of a request for several tasks."""

    results: list[TaskResult]


class Pushed(Struct, frozen=True, kw_only=True):
    """The version of an uploaded delta; `created` is False if the task already had this content."""

    task: str
    version: int
    digest: str
    created: bool = True


class AliasPlace(Struct, frozen=True):
    """The version of an alias, and its previous version if it was ever moved."""

    task: str
    alias: str
    version: int
    previous: int | None = None


class TaskSummary(Struct, frozen=True):
    """A task with its version numbers, and the current and previous versions of its aliases."""

    name: str
    aliases: dict[str, int]
    previous: dict[str, int]
    versions: list[int]


class TaskList(Struct, frozen=True):
    """A page of tasks by name; `next` is the `after` of the next page."""

    tasks: list[TaskSummary]
    next: str | None = None


class VersionSummary(Struct, frozen=True, kw_only=True):
    """One version of a task and its state on the server.

    Attributes:
        status: `registered`, `loading`, `resident`, `evicted` or `unavailable`.
        retry_in: seconds until the server tries again to load an unavailable version.
        size: of the delta file, in bytes.
        method: of training; None, like the fields below, if the manifest cannot be read.
    """

    version: int
    digest: str
    status: str
    reason: str | None = None
    retry_in: float | None = None
    size: int
    created_at: datetime
    method: str | None = None
    task_type: str | None = None
    labels: int | None = None


class TaskFacts(Struct, frozen=True):
    """A task with a summary of each version, oldest first."""

    name: str
    aliases: dict[str, int]
    previous: dict[str, int]
    versions: list[VersionSummary]


class TaskPage(TaskFacts, frozen=True):
    """A page of a task's versions; `next` is the `after` of the next page."""

    next: int | None = None


class VersionFacts(VersionSummary, frozen=True, kw_only=True):
    """One version with its delta's manifest (FORMAT.md)."""

    task: str
    manifest: dict[str, Any]


class KeyQuotas(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The quotas of a key; None means unlimited.

    `tasks` and `bytes` count the versions that this key uploaded; `requests` and `tokens` are per second and server.
    """

    tasks: int | None = None
    bytes: int | None = None
    requests: float | None = None
    tokens: float | None = None


UNLIMITED = KeyQuotas()


class KeyFacts(Struct, frozen=True, kw_only=True):
    """A key without its secret. Keys with one name are one principal; `tasks` are globs.

    The state is `valid`, `expired` or `revoked`; the scopes are `classify`, `upload`, `promote` and `admin`.
    """

    id: str
    name: str
    scopes: list[str]
    tasks: list[str]
    default_task: str | None
    quotas: KeyQuotas
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    state: str


class MadeKey(KeyFacts, frozen=True, kw_only=True):
    """A new key with its secret, which no other call returns."""

    key: str


class KeyList(Struct, frozen=True):
    """Every key ever made, oldest first."""

    keys: list[KeyFacts]


class Change(Struct, frozen=True, kw_only=True):
    """One change in the audit trail; the action (such as `upload` or `promote`) determines which fields are set.

    `before` is the alias's previous version, `name` a task's new name, `key` the name and id of a key.
    """

    seq: int
    at: datetime
    action: str
    task: str | None
    alias: str | None
    before: int | None
    version: int | None
    key: str | None
    principal: str
    request: str
    rolled_back: bool
    name: str | None = None


class ChangePage(Struct, frozen=True):
    """A page of the audit trail; `next` is the `after` of the next page."""

    changes: list[Change]
    next: int | None = None


class BaseFacts(Struct, frozen=True, kw_only=True):
    """A server's base, its device, and the names and shapes that a delta for it may change."""

    name: str
    digest: str
    model_type: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_length: int
    num_parameters: int
    poolings: list[str]
    dtype: str
    device: str
    kernels: str
    batch_invariant: bool
    parameters: dict[str, list[int]]
    modules: dict[str, list[int]]
    symbols: dict[str, str]
