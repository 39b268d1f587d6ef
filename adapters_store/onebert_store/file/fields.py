"""Strictness and fields that the models of a manifest share."""

import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

Line = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
# The largest regression target: losses add the squares of errors in float32, which ends at 3e38.
MAX_NUMBER = 1e15

# Categories of Unicode: spaces, marks without a letter, format characters; and letters that look like a space.
_UNSEEN = {"Zs", "Mn", "Mc", "Me", "Cf"}
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
_FAULTS: Mapping[str, str] = {
    "string_too_short": "is empty",
    "string_too_long": "has over 256 characters",
    "string_unicode": "has half a surrogate pair",
    "string_pattern_mismatch": "has a line break or another control character",
    "value_error": "has no visible character",
}


def _visible(label: str) -> str:
    if all(unicodedata.category(char) in _UNSEEN or char in _BLANK for char in label):
        raise ValueError("must have a visible character")
    return label


def spelling(label: str) -> str:
    """Returns a label without what people do not see: case, spaces, invisible characters, equivalent Unicode forms."""
    visible = "".join(char for char in unicodedata.normalize("NFKC", label) if unicodedata.category(char) != "Cf")
    return " ".join(visible.casefold().split())


Label = Annotated[Line, AfterValidator(_visible)]
"""A new label; a manifest may hold any `Line`."""

_LABEL = TypeAdapter[str](Label)


@lru_cache(maxsize=2**13)
def label_fault(text: str) -> str | None:
    """Returns why `text` cannot be a new label; cached, because millions of cells name few labels."""
    try:
        _LABEL.validate_python(text)
    except ValidationError as error:
        return _FAULTS[error.errors(include_input=False, include_url=False)[0]["type"]]
    return None


class Strict(BaseModel):
    """No coercion and no unknown keys: a typo in a manifest is an error, never a default."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
