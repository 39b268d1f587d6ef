"""The setting of watching."""

from typing import Annotated

from pydantic import BaseModel, Field


class Settings(BaseModel):
    """How often watching may be wrong."""

    #: False alarms a month that this server may raise over all its tasks when nothing has changed
    #: ([watching](../guide/watching.md)); fewer mean that changes are heard later. 0 watches nothing.
    false_alarms: Annotated[float, Field(ge=0, le=1000)] = 1.0
