"""Shared by request bodies: a reference to a task, and the strict base model."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from onebert_server.contract.declared import REF
from onebert_server.limits import MAX_REF

Ref = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_REF,
        description="`name`, `name@3` or `name@alias`",
        json_schema_extra={"pattern": REF},
    ),
]


class RequestBody(BaseModel):
    """No coercion and no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid")
