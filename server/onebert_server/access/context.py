"""What the server knows of a request beside its body: who asks, until when, since when, and under which id."""

import time
from dataclasses import dataclass, field, replace

from onebert_server.access.principal import OWN_WORK, Principal
from onebert_server.telemetry.observed import Observed
from onebert_store.registry.records import Actor


@dataclass(frozen=True)
class Context:
    """One request as it travels from the edge to the engine's queue.

    Attributes:
        principal: who asks, and what it may do; fairness and shares are counted by its name.
        deadline: when nobody waits for the answer any more, in seconds of `time.monotonic()`.
        arrived: when the request came, on the same clock.
        request_id: what the answer and the log call the request.
        min_seq: the registry's change that the answer has to know of; 0 is none.
        counted: whether quotas have counted it already: a request that is asked in parts counts with its first.
        observed: what becomes known of it on its way.
    """

    principal: Principal
    deadline: float
    arrived: float
    request_id: str
    min_seq: int = 0
    counted: bool = field(default=False, kw_only=True)
    observed: Observed = field(default_factory=Observed, compare=False, repr=False)

    def within(self, milliseconds: float | None) -> "Context":
        """This context with a deadline at most so many milliseconds after the arrival; None leaves it as it is."""
        if milliseconds is None:
            return self
        return replace(self, deadline=min(self.deadline, self.arrived + milliseconds / 1000))

    @property
    def actor(self) -> Actor:
        """Who makes a change by this request."""
        return Actor(self.principal.name, self.request_id, self.deadline)


def own_work(name: str) -> Context:
    """The context of work that the server itself has to do: it is let in whatever waits, and never too late.

    Args:
        name: what the log calls it.
    """
    return Context(OWN_WORK, deadline=float("inf"), arrived=time.monotonic(), request_id=name)
