"""What the models of a manifest share: strictness, and fields that several of them have."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Line = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Strict(BaseModel):
    """No coercion and no unknown keys: a typo in a manifest is an error, never a default."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
