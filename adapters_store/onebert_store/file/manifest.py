"""The manifest of a delta file: one JSON object that describes the tensors' task."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from onebert_store.errors import InvalidManifest
from onebert_store.file.decision import Decision, check_decision
from onebert_store.file.fields import Finite, Line, Strict
from onebert_store.file.reference import Reference
from onebert_store.file.strict_json import printable, refuse_foreign

# Each content has the lowest format that holds it, so that bytes and digests of older files never change.
PLAIN_FORMAT, WITH_DECISION, FORMAT = 1, 2, 3
MAX_LABELS = 4096
MAX_TAGS = 512  # labels of a token task: the queue holds this many logits for every token of every text
MAX_GOLDEN = 8
MAX_GOLDEN_TOKENS = 512
MAX_TOKEN = 2**31 - 1

TaskType = Literal["single_label", "multi_label", "regression", "token", "span"]
Pooling = Literal["cls", "mean", "pooler", "siamese", "none"]
Activation = Literal["tanh", "gelu", "relu"]

# Pooling of a pair task that encodes each text on its own; the head compares their mean vectors.
SIAMESE: Pooling = "siamese"

# Task types whose head reads every token, with `pooling: "none"`.
PER_TOKEN: frozenset[TaskType] = frozenset({"token", "span"})

# Task types whose answers are counted against a reference.
WATCHED: frozenset[TaskType] = frozenset({"single_label", "multi_label"})

# Task types that may have shadows: their answers have labels.
SHADOWED = WATCHED | {"token"}

MIN_LABELS: Mapping[TaskType, int] = {"single_label": 2, "token": 2}
SPAN_LABELS = ["start", "end"]

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


def _plain_json(value: dict[str, Any]) -> dict[str, Any]:
    refuse_foreign(value)
    return value


class BaseRef(Strict):
    """The base that the delta was trained on."""

    name: Line
    model_type: Line
    digest: Digest


class HeadLayer(Strict):
    """The activation of the layer `head.dense`; a manifest without this object means tanh."""

    activation: Literal["gelu", "relu"]


class Golden(Strict):
    """Token-id sequences and the float32 logits that the trainer computed: per sequence, or per token."""

    input_ids: Annotated[
        list[list[Annotated[int, Field(ge=0, le=MAX_TOKEN)]]], Field(min_length=1, max_length=MAX_GOLDEN)
    ]
    logits: Annotated[list[list[Finite]], Field(min_length=1, max_length=MAX_GOLDEN)]

    @model_validator(mode="after")
    def _same_count(self) -> "Golden":
        if len(self.input_ids) != len(self.logits):
            raise ValueError("input_ids and logits have different lengths")
        if any(not 1 <= len(ids) <= MAX_GOLDEN_TOKENS for ids in self.input_ids):
            raise ValueError(f"a golden sequence has 1 to {MAX_GOLDEN_TOKENS} tokens")
        return self


class Manifest(Strict):
    """The purpose of a delta's tensors; `training` is for people and changes no answer."""

    # Not Literal[1, 2], which accepts true and 1.0 as 1.
    format: Annotated[int, Field(ge=PLAIN_FORMAT, le=FORMAT)]
    base: BaseRef
    task_type: TaskType
    labels: Annotated[list[Line], Field(min_length=1, max_length=MAX_LABELS)]
    pooling: Pooling
    max_length: Annotated[int, Field(ge=3, le=65536)]
    method: Line
    training: Annotated[dict[str, Any], AfterValidator(_plain_json)] = Field(default_factory=dict)
    golden: Golden | None = None
    decision: Decision | None = None
    head: HeadLayer | None = None
    reference: Reference | None = None

    @property
    def activation(self) -> Activation:
        """The activation of the layer `head.dense`, if there is one."""
        return self.head.activation if self.head else "tanh"

    @property
    def per_token(self) -> bool:
        """True if there are logits for every token, [tokens, labels], instead of one vector, [labels]."""
        return self.task_type in PER_TOKEN

    @model_validator(mode="after")
    def _labels_and_decision_fit(self) -> "Manifest":
        check_labels(self.task_type, self.labels)
        if self.format != format_for(self.decision, self.head, self.reference):
            raise ValueError("format: it is 3 with a head or a reference, else 2 with a decision, else 1")
        if self.reference is not None:
            _check_reference(self.reference, self.task_type, self.labels)
        if self.decision is not None:
            try:
                check_decision(self.decision, self.task_type, self.labels, self.max_length)
            except ValueError as error:
                raise ValueError(f"decision.{error}") from None
        return self

    @model_validator(mode="after")
    def _pooling_and_golden_fit(self) -> "Manifest":
        if self.per_token and self.pooling != "none":
            raise ValueError(f"a {self.task_type} task has pooling none")
        if not self.per_token and self.pooling == "none":
            raise ValueError(f"a {self.task_type} task has a pooling, not none")
        if self.head and self.pooling == SIAMESE:
            raise ValueError("head: a task with pooling siamese has no layer before its classifier")
        if self.golden is None:
            return self
        if self.pooling == SIAMESE and any(len(ids) < 2 for ids in self.golden.input_ids):
            raise ValueError("a golden sequence of a task on pairs has at least two tokens, one of each text")
        for ids, logits in zip(self.golden.input_ids, self.golden.logits, strict=True):
            if len(logits) != len(self.labels) * (len(ids) if self.per_token else 1):
                raise ValueError(f"golden logits do not have one number per {'token and ' * self.per_token}label")
        return self


def check_labels(task_type: TaskType, labels: Sequence[str]) -> None:
    """Raises ValueError with one sentence, which names no label, if the labels do not fit each other or the task."""
    if len(set(labels)) != len(labels):
        raise ValueError("labels are not distinct")
    if len(labels) < MIN_LABELS.get(task_type, 1):
        raise ValueError(f"a {task_type} task has at least two labels")
    if task_type == "token" and len(labels) > MAX_TAGS:
        raise ValueError(f"a token task has at most {MAX_TAGS} labels")
    if task_type == "span" and list(labels) != SPAN_LABELS:
        raise ValueError("the labels of a span task are start and end")


def _check_reference(reference: Reference, task_type: TaskType, labels: Sequence[str]) -> None:
    if task_type not in WATCHED:
        raise ValueError(f"reference: a {task_type} task has none")
    if len(reference.labels) != len(labels):
        raise ValueError("reference.labels: one count for each label")


def format_for(decision: Decision | None, head: HeadLayer | None, reference: Reference | None = None) -> int:
    """Returns the lowest format that can hold the manifest, so that equal content has one format and one digest."""
    return FORMAT if head or reference else WITH_DECISION if decision else PLAIN_FORMAT


def head_width(pooling: Pooling, hidden_size: int) -> int:
    """Returns how many numbers a head reads; for a pair of means u, v: u, v, |u - v|, u * v and their cosine."""
    return 4 * hidden_size + 1 if pooling == SIAMESE else hidden_size


def parse_manifest(data: Any) -> Manifest:
    """Validates decoded JSON; InvalidManifest names the first wrong field and never repeats its value."""
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise InvalidManifest(f"{printable(where)}: {first['msg'].removeprefix('Value error, ')}") from None
