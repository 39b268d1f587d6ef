"""What the client library gives: one small type per answer of a server; fields that a newer server adds are ignored."""

from datetime import datetime
from typing import Any

from msgspec import Struct, to_builtins


def as_dict(value: Struct) -> dict[str, Any]:
    """The fields of any type below as JSON values; those of a result that are None are left out."""
    fields: dict[str, Any] = to_builtins(value)
    return fields


class LabeledSpan(Struct, frozen=True):
    """A word or an entity of a text: `text[start:end]` in code points, its label and the label's probability."""

    start: int
    end: int
    label: str
    score: float


class AnswerSpan(Struct, frozen=True):
    """An answer found in the context of a question: `context[start:end]` in code points, with its probability."""

    start: int
    end: int
    text: str
    score: float


class WordEffect(Struct, frozen=True):
    """What an answer owes to a word: `text[start:end]` in code points, or `text_pair[start:end]`, as `field` says.

    Attributes:
        effect: the score of the answer's label less that score without the word.
    """

    field: str
    start: int
    end: int
    effect: float


class Explanation(Struct, frozen=True):
    """Which words an answer is owed to; of a long text, which stretches of neighboring words.

    Attributes:
        method: `occlusion`, which asks again without each word.
        label: whose score is explained.
        words: in the order of the text.
    """

    method: str
    label: str
    words: list[WordEffect]


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer; the task type decides which fields are there, the others are None.

    Attributes:
        label: the most likely label; of a regression the name of its first output.
        score: the probability of `label`; of a regression the value.
        scores: label -> probability, best first; of a regression output -> value.
        labels: the labels over their thresholds, best first; None where labels have none.
        words: of a token task, every word with its label.
        entities: of a token task with BIO labels, the entities.
        answers: of a span task, the answers, best first.
        abstained: whether the task says that it does not know; None where it has no rule for that.
        energy: -T logsumexp(logits / T), high where the task knows nothing like the input; None unless asked for.
        tokens: of the input, special tokens included.
        truncated: whether the input was cut to the task's longest.
        windows: in how many windows it was read; None where it was not read by windows.
        explanation: which words it is owed to, where that was asked.
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
    """Why one task of several has no answer; `code` is one of docs/api.md."""

    code: str
    title: str
    detail: str


class TaskResult(Result, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of a server, with the task, the version and the digest of the delta that gave it.

    Attributes:
        error: why there is no answer; then the fields of an answer are all None, and those of the version, too, where
            none was found in time.
    """

    task: str
    version: int | None = None
    digest: str | None = None
    error: ResultError | None = None


class Results(Struct, frozen=True):
    """The answers of one request; a request for one task names the version once."""

    results: list[Result]
    task: str
    version: int
    digest: str


class TaskResults(Struct, frozen=True):
    """The answers of one request for several tasks."""

    results: list[TaskResult]


class Pushed(Struct, frozen=True, kw_only=True):
    """The version that holds an uploaded delta; `created` is False where the task had this content already."""

    task: str
    version: int
    digest: str
    created: bool = True


class AliasPlace(Struct, frozen=True):
    """Where an alias points, and the version where it pointed before, if it was ever moved."""

    task: str
    alias: str
    version: int
    previous: int | None = None


class TaskSummary(Struct, frozen=True):
    """A task: where its aliases point, where those that were moved pointed before, and its version numbers."""

    name: str
    aliases: dict[str, int]
    previous: dict[str, int]
    versions: list[int]


class TaskList(Struct, frozen=True):
    """A page of a server's tasks, by name; `next` is where the next page begins."""

    tasks: list[TaskSummary]
    next: str | None = None


class VersionSummary(Struct, frozen=True, kw_only=True):
    """One version of a task, and what the server has of it.

    Attributes:
        status: how far it is in the server's memory; `unavailable` ones are not answered.
        reason: why it is unavailable.
        retry_in: seconds until an unavailable one is tried again.
        size: bytes of its file.
        method: how it was trained; this and what follows is None where its manifest cannot be read.
        labels: how many it has.
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
    """A page of a task's versions; `next` is where the next page begins."""

    next: int | None = None


class VersionFacts(VersionSummary, frozen=True, kw_only=True):
    """One version with the manifest of its delta file, as FORMAT.md describes it."""

    task: str
    manifest: dict[str, Any]


class KeyQuotas(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much a key allows; None is as much as it likes.

    Attributes:
        tasks: tasks that hold a version which was uploaded with it.
        bytes: sizes of those versions together.
        requests: requests that classify, in a second, of each server.
        tokens: tokens that are computed, in a second, of each server.
    """

    tasks: int | None = None
    bytes: int | None = None
    requests: float | None = None
    tokens: float | None = None


UNLIMITED = KeyQuotas()


class KeyFacts(Struct, frozen=True, kw_only=True):
    """A key, without the key itself.

    Attributes:
        id: what it is revoked by.
        name: whose it is; keys of one name are one principal.
        scopes: what it is for, of `classify`, `upload`, `promote` and `admin`.
        tasks: for which tasks, as globs.
        default_task: what a request means that names no task.
        state: `valid`, `expired` or `revoked`.
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
    """A key that was made; nothing else will ever give the key itself."""

    key: str


class KeyList(Struct, frozen=True):
    """Every key that was made, the oldest first."""

    keys: list[KeyFacts]


class Change(Struct, frozen=True, kw_only=True):
    """One row of the audit trail; which fields there are depends on the action.

    Attributes:
        seq: its number.
        action: what was done, as `upload` or `promote`.
        before: the version where the alias was before.
        key: name and id of a key that was made or revoked.
        name: what a renamed task is called since.
        principal, request: who made the change, and by which request.
        rolled_back: whether an alias was moved to an older version.
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
    """A page of the audit trail; `next` is where the next page begins."""

    changes: list[Change]
    next: int | None = None


class BaseFacts(Struct, frozen=True, kw_only=True):
    """The base of a server, what computes it, and the names and shapes that a delta for it may touch."""

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
