"""Shared by request bodies of the control plane: the strict base model, and the tags of unions."""

from pydantic import BaseModel, ConfigDict

LIST, OBJECT = "[list]", "[object]"
"""Tags of the branches of a union. They appear in the paths of violations, where problems.py removes them."""


class RequestBody(BaseModel):
    """No coercion and no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid")
