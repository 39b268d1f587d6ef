"""The setting of watching."""

from typing import Annotated

from pydantic import BaseModel, Field


class Settings(BaseModel):
    """How often watching may be wrong."""

    #: False alarms that this server may raise in 300,000 answers, a month of 10,000 a day, over all its tasks when
    #: nothing has changed ([watching](../guide/watching.md)); fewer mean that changes are heard later. 0 watches
    #: nothing.
    false_alarms: Annotated[float, Field(ge=0, le=1000)] = 1.0
