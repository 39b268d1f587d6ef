"""The manifest of a delta file: one JSON object that says what the tensors are for."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from onebert_store.errors import InvalidManifest
from onebert_store.strict_json import refuse_foreign, shown

FORMAT = 1
MAX_LABELS = 4096
MAX_GOLDEN = 8
MAX_GOLDEN_TOKENS = 512
MAX_TOKEN = 2**31 - 1

TaskType = Literal["single_label", "multi_label", "regression"]
Pooling = Literal["cls", "mean", "pooler"]

Line = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _plain_json(value: dict[str, Any]) -> dict[str, Any]:
    refuse_foreign(value)
    return value


class _Strict(BaseModel):
    """No coercion and no unknown keys: a typo in a manifest is an error, never a default."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class BaseRef(_Strict):
    """The base that the delta was trained on."""

    name: Line
    model_type: Line
    digest: Digest


class Golden(_Strict):
    """Token-id sequences and the float32 logits that the trainer computed for them."""

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


class Manifest(_Strict):
    """What the tensors of a delta are for; `training` is free provenance."""

    # Not Literal[1], which takes true and 1.0 for 1.
    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    base: BaseRef
    task_type: TaskType
    labels: Annotated[list[Line], Field(min_length=1, max_length=MAX_LABELS)]
    pooling: Pooling
    max_length: Annotated[int, Field(ge=3, le=65536)]
    method: Line
    training: Annotated[dict[str, Any], AfterValidator(_plain_json)] = Field(default_factory=dict)
    golden: Golden | None = None

    @model_validator(mode="after")
    def _labels_fit(self) -> "Manifest":
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels are not distinct")
        if self.task_type == "single_label" and len(self.labels) < 2:
            raise ValueError("a single_label task has at least two labels")
        if self.golden and any(len(row) != len(self.labels) for row in self.golden.logits):
            raise ValueError("golden logits do not have one number per label")
        return self


def parse_manifest(data: Any) -> Manifest:
    """Validates a decoded JSON value.

    Raises:
        InvalidManifest: names the first offending field; the value itself is never echoed.
    """
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise InvalidManifest(f"{shown(where)}: {first['msg'].removeprefix('Value error, ')}") from None
