"""The context of a request: principal, deadline, arrival and id."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import isinf

from onebert_server.access.principal import OWN_WORK, Principal
from onebert_server.observed import Observed
from onebert_store.registry.grants import Scope
from onebert_store.registry.records import Actor


@dataclass(slots=True)
class Context:
    """One request as it travels from the edge to the engine's queue; nothing changes it (`frozen` costs each request).

    Attributes:
        deadline: the answer is useless afterwards; in seconds of `time.monotonic()`.
        arrived: time of arrival, on the same clock.
        min_seq: number of the registry's change that the answer must include; 0 means none.
        requests: how many it is, until the quota has counted them with its first questions; its parts share the list.
        message: why the caller changes something, for the audit trail.
        header: returns the first value of a header, by its name in lower case; None without it.
        lacking: names of headers that an alias chooses by and a front end did not send along.
    """

    principal: Principal
    deadline: float
    arrived: float
    request_id: str
    min_seq: int = 0
    requests: list[int] = field(default_factory=partial(list, (1,)), compare=False, repr=False, kw_only=True)
    message: str | None = field(default=None, kw_only=True)
    observed: Observed = field(default_factory=Observed, compare=False, repr=False)
    header: Callable[[str], bytes | None] = field(default=lambda _: None, compare=False, repr=False, kw_only=True)
    lacking: list[str] = field(default_factory=list, compare=False, repr=False, kw_only=True)

    def within(self, milliseconds: float | None) -> "Context":
        """Moves the deadline to at most so many milliseconds after the arrival; None leaves it as it is."""
        if milliseconds is None:
            return self
        return replace(self, deadline=min(self.deadline, self.arrived + milliseconds / 1000))

    def key_of(self, sticky: str | None) -> bytes | None:
        """The request's value of a target's `sticky`; None if it has none."""
        if sticky is None:
            return None
        if sticky == "principal":
            return self.principal.name.encode()
        return self.header(sticky.removeprefix("header:").lower()) or None

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if isinf(self.deadline) else self.deadline - time.monotonic()

    @property
    def of_own_questions(self) -> "Context":
        """The context of questions that this request asks on its own: no answer of them is shown, counted or kept."""
        principal = replace(self.principal, scopes=self.principal.scopes | {Scope.CLASSIFY})
        return replace(self, principal=principal, observed=Observed(span=self.observed.span))

    @property
    def actor(self) -> Actor:
        return Actor(self.principal.name, self.request_id, self.deadline, self.principal.quotas, self.message)


def own_work(name: str) -> Context:
    """Returns a context for the server's own work, which is always admitted and never late; the log shows `name`."""
    return Context(OWN_WORK, deadline=float("inf"), arrived=time.monotonic(), request_id=name)
