"""The bodies of requests and answers; every list and text has its bound here."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from onebert_encoder.answering.answer import FoundSpan, Labeled
from onebert_server.limits import MAX_FANOUT, MAX_ITEMS, MAX_REF, MAX_TEXT
from onebert_store.file.manifest import Manifest
from onebert_store.registry.grants import MAX_GLOBS


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_not_blank)]
NAME = "^[a-z0-9][a-z0-9._-]{0,62}$"
# Not all digits: those are version numbers.
ALIAS = f"^(?![0-9]+$){NAME[1:]}"
GLOB = "^[a-z0-9*][a-z0-9._*-]{0,62}$"
REF = f"{NAME[:-1]}(@{NAME[1:-1]})?$"
"""What names and references look like, for readers of the OpenAPI document; the store has the rule that counts."""

Ref = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_REF,
        description="`name`, `name@3` or `name@alias`",
        json_schema_extra={"pattern": REF},
    ),
]
RefOrAll = Annotated[Ref, Field(json_schema_extra={"pattern": rf"{REF[:-1]}$|^\*$"})]
TopK = Annotated[
    int | None,
    Field(
        ge=1,
        le=4096,
        description="how many scores to send, best first (null: all); span tasks: answers (null: one, at most 20)",
    ),
]


class _Request(BaseModel):
    """No coercion and no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


class TextPair(_Request):
    """One input: a text, or a pair of texts for tasks on pairs; for span tasks a question and its context."""

    text: Text
    text_pair: Text | None = None


# What the unions below call their branches; they stand in the paths of violations, where problems.py leaves them out.
TEXT, PAIR, LIST = TAGS = ("[text]", "[pair]", "[list]")


def _tag(value: Any) -> str:
    """Chooses the branch of a union, so that errors are about what was sent."""
    return LIST if isinstance(value, list) else TEXT if isinstance(value, str) else PAIR


OneInput = Annotated[Annotated[Text, Tag(TEXT)] | Annotated[TextPair, Tag(PAIR)], Discriminator(_tag)]
Inputs = Annotated[
    Annotated[Text, Tag(TEXT)]
    | Annotated[TextPair, Tag(PAIR)]
    | Annotated[Annotated[list[OneInput], Field(min_length=1, max_length=MAX_ITEMS)], Tag(LIST)],
    Discriminator(_tag),
]


class ClassifyRequest(_Request):
    """Inputs for one task."""

    inputs: Inputs
    top_k: TopK = None


class Item(TextPair):
    """One input for one task; without a task, for the one that is the key's default."""

    task: Ref | None = None


class ClassifyItemsRequest(_Request):
    """Inputs for many tasks."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)]
    top_k: TopK = None


class FanoutRequest(TextPair):
    """One input for many tasks; `["*"]` means the live version of every task that takes such an input."""

    tasks: Annotated[list[RefOrAll], Field(min_length=1, max_length=MAX_FANOUT)]
    top_k: TopK = None


class AliasRequest(_Request):
    """Where an alias shall point."""

    version: Annotated[int, Field(ge=1, lt=2**31)]


class Result(BaseModel):
    """One answer; which of its fields there are depends on the task type.

    Tasks on whole texts have `label`, `score` and `scores`, best first; multi_label tasks also `labels`, those that
    apply. Token tasks have `words`, and `entities` if their labels are BIO. Span tasks have `answers`, best first.
    """

    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    labels: list[str] | None = None
    words: list[Labeled] | None = None
    entities: list[Labeled] | None = None
    answers: list[FoundSpan] | None = None
    tokens: Annotated[int | None, Field(description="tokens of the input, special tokens included")] = None
    truncated: Annotated[bool | None, Field(description="whether the input was cut to the task's max_length")] = None


class ResultError(BaseModel):
    """Why there is no answer; `code` is from the catalogue in docs/api.md."""

    code: str
    title: str
    detail: str


class TaskResult(Result):
    """One answer and the version that made it; or, of an answer that is not finite, the version and `error` alone."""

    task: str
    version: int
    digest: str
    error: ResultError | None = None


class ClassifyResponse(BaseModel):
    """Answers in the order of the inputs, all by one version."""

    task: str
    version: int
    digest: str
    results: list[Result]


class ClassifyItemsResponse(BaseModel):
    """Answers in the order of the items or tasks."""

    results: list[TaskResult]


class Uploaded(BaseModel):
    """The version that holds an uploaded delta."""

    task: str
    version: int
    digest: str


Previous = Annotated[int, Field(description="where the alias pointed before; that version may be deleted by now")]


class AliasResponse(BaseModel):
    """Where an alias points."""

    task: str
    alias: str
    version: int
    previous: Previous | None


class VersionSummary(BaseModel):
    """One version of a task, and how far it is in this server's memory."""

    version: int
    digest: str
    status: Annotated[
        Literal["registered", "loading", "resident", "evicted", "unavailable"],
        Field(description="resident answers at once, unavailable not at all; others are loaded when asked for"),
    ]
    reason: Annotated[str | None, Field(description="why it is unavailable, or what is wrong with its stored file")] = (
        None
    )
    retry_in: Annotated[float | None, Field(description="seconds until an unavailable one is tried again")] = None
    size: Annotated[int, Field(description="bytes of the delta file")]
    created_at: datetime
    method: Annotated[str | None, Field(description="this and what follows: null where no manifest can be read")]
    task_type: str | None
    labels: int | None


class VersionResponse(VersionSummary):
    """One version with its manifest."""

    task: str
    manifest: Manifest


class _Task(BaseModel):
    name: str
    aliases: dict[str, int]
    previous: dict[str, Previous]


class TaskSummary(_Task):
    """A task, its version numbers, where its aliases point, and where those that were moved pointed before."""

    versions: list[int]


class TasksResponse(BaseModel):
    """A page of the tasks, by name."""

    tasks: list[TaskSummary]
    next: Annotated[str | None, Field(description="what `after` must be for the next page; null on the last one")]


class TaskResponse(_Task):
    """A task, its aliases as in the list of tasks, and a page of its versions, oldest first."""

    versions: list[VersionSummary]
    next: Annotated[int | None, Field(description="what `after` must be for the next page; null on the last one")]


class BaseResponse(BaseModel):
    """The base, and the shapes that a delta for it may touch."""

    name: str
    digest: str
    model_type: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_length: int
    num_parameters: int
    poolings: Annotated[list[str], Field(description="those of a text's tokens; `none` is always possible besides")]
    dtype: Annotated[str, Field(description="what the encoder computes in")]
    device: str
    kernels: Annotated[
        str,
        Field(
            description="what computes between the matrix products: native, with the instructions that a wheel's"
            " library is compiled for, plain, or gpu and what it chose"
        ),
    ]
    batch_invariant: Annotated[bool, Field(description="whether a text gets the same bits alone and in every batch")]
    parameters: dict[str, list[int]]
    modules: dict[str, list[int]]
    symbols: dict[str, str]


class Health(BaseModel):
    """Whether the server lives or is ready; no names, since it is open to all."""

    status: Literal["alive", "started", "ready"]
    tasks: int | None = None
    versions: int | None = None
    resident: Annotated[int | None, Field(description="versions in memory")] = None
    unavailable: Annotated[int | None, Field(description="versions that cannot be loaded")] = None
    damaged: Annotated[int | None, Field(description="versions whose stored file was found damaged")] = None
    storage: Annotated[
        str | None, Field(description="ok, or the code of the error with which the disk refused the last change")
    ] = None
    seq: Annotated[int | None, Field(description="the registry's last change that is shown here")] = None
    age: Annotated[float | None, Field(description="seconds since the registry was last looked at")] = None


def _written_out(value: Any) -> Any:
    # Pydantic would take a number for seconds since 1970, which no document says.
    if not isinstance(value, str) or "T" not in value:
        raise ValueError("must be a time as 2026-01-31T12:00:00Z")
    return value


Time = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_written_out)]
Glob = Annotated[str, Field(json_schema_extra={"pattern": GLOB})]


class KeyQuotas(_Request):
    """How much a key allows; null is as much as it likes."""

    tasks: Annotated[int | None, Field(ge=1, lt=2**53, description="tasks that hold versions uploaded with it")] = None
    bytes: Annotated[int | None, Field(ge=1, lt=2**53, description="sizes of those versions together")] = None
    requests: Annotated[float | None, Field(gt=0, lt=2**53, description="a second, of each replica")] = None
    tokens: Annotated[float | None, Field(gt=0, lt=2**53, description="computed in a second, of each replica")] = None


class _Key(_Request):
    name: Annotated[str, Field(json_schema_extra={"pattern": NAME}, description="keys of one name are one principal")]
    scopes: Annotated[list[Literal["classify", "upload", "promote", "admin"]], Field(min_length=1, max_length=4)]
    tasks: Annotated[list[Glob], Field(min_length=1, max_length=MAX_GLOBS, description="globs, as `acme-*`")]
    default_task: Annotated[Ref | None, Field(description="what a request means that names no task")] = None
    quotas: KeyQuotas = KeyQuotas()


class KeyRequest(_Key):
    """A key that shall be made."""

    expires_at: Time | None = None


class KeyResponse(_Key):
    """A key, without the key itself."""

    id: Annotated[str, Field(description="what it is revoked by; the first digits of its SHA-256")]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    state: Literal["valid", "expired", "revoked"]


class MadeKey(KeyResponse):
    """A key that was made, and the one answer that has it."""

    key: str


class KeysResponse(BaseModel):
    """Every key that was made, the oldest first."""

    keys: list[KeyResponse]


class Changed(BaseModel):
    """One row of the audit trail; which fields there are depends on the action."""

    model_config = ConfigDict(from_attributes=True)

    seq: int
    at: datetime
    action: str
    task: str | None
    alias: str | None
    before: Annotated[int | None, Field(description="the version where the alias was before")]
    version: int | None
    key: Annotated[str | None, Field(description="name and id of a key that was made or revoked")]
    principal: Annotated[str, Field(description="who made the change")]
    request: Annotated[str, Field(description="the id of the request by which it was made")]
    rolled_back: Annotated[bool, Field(description="whether an alias was moved to an older version")]


class AuditResponse(BaseModel):
    """A page of the audit trail, the oldest change first."""

    changes: list[Changed]
    next: Annotated[int | None, Field(description="what `after` must be for the next page; null on the last one")]


class Reason(BaseModel):
    """One broken rule."""

    path: str
    reason: str


class Problem(BaseModel):
    """RFC 9457; `code` is from the catalogue in docs/api.md."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    errors: list[Reason] | None = None
