"""What several bodies have in common: how names look, and what every request's body is."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from onebert_server.limits import MAX_REF

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


class RequestBody(BaseModel):
    """No coercion and no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid")
