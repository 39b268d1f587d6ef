"""Shared by request bodies: the patterns of names, and the strict base model."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from onebert_server.limits import MAX_REF

NAME = "^[a-z0-9][a-z0-9._-]{0,62}$"
# All digits would be a version number.
ALIAS = f"^(?![0-9]+$){NAME[1:]}"
GLOB = "^[a-z0-9*][a-z0-9._*-]{0,62}$"
REF = f"{NAME[:-1]}(@{NAME[1:-1]})?$"
"""The patterns are documentation for the OpenAPI document; the store validates names."""

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
