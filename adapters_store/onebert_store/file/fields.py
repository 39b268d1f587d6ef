"""Strictness and fields that the models of a manifest share."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

Line = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]

_LINE = TypeAdapter[str](Line)
_FAULTS: Mapping[str, str] = {
    "string_too_short": "is empty",
    "string_too_long": "has over 256 characters",
    "string_unicode": "has half a surrogate pair",
    "string_pattern_mismatch": "has a line break or another control character",
}


@lru_cache(maxsize=2**13)
def line_fault(text: str) -> str | None:
    """Returns why a manifest cannot hold `text` as a `Line`; cached, because millions of cells name few labels."""
    try:
        _LINE.validate_python(text)
    except ValidationError as error:
        return _FAULTS[error.errors(include_input=False, include_url=False)[0]["type"]]
    return None


class Strict(BaseModel):
    """No coercion and no unknown keys: a typo in a manifest is an error, never a default."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
