"""The setting of the trainer."""

from pydantic import BaseModel

# No replica of a cluster takes these.
OF_ONE_SERVER = ("trainer",)


class Settings(BaseModel):
    """Whether this server trains."""

    #: Whether a process beside this one makes versions of examples that clients send
    #: ([examples](../guide/examples.md)).
    trainer: bool = False
