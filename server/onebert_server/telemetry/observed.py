"""What becomes known of one request while it is answered, wherever that happens; who wants it reads it at the end."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    # Only where there are traces: it takes OpenTelemetry.
    from onebert_server.telemetry.tracing import RequestSpan

# The phases of a request: its body is read; its texts are split; it waits, for its version to be loaded, too; batches
# with something of it are computed; its logits are read and written.
PARSE, TOKENIZE, QUEUE, FORWARD, ANSWER = "parse", "tokenize", "queue", "forward", "answer"

OTHER = "(other)"
"""Stands for all tasks, or labels, without a series of their own; no task can have this name."""

Carried = tuple[str, str]
"""A span for another process: `traceparent` and `tracestate` of W3C Trace Context."""


class Seen(NamedTuple):
    """One answer: the task, the labels that it names, its top score, where it has one, and the version."""

    task: str
    labels: tuple[str, ...] = ()
    score: float | None = None
    version: int = 0


class Ended(NamedTuple):
    """One answered request, to be counted.

    Attributes:
        method: one of a few.
        route: the template, so that names of tasks never become values of this label.
        status: of the answer.
        seconds: it took.
        problem: the code of the typed error that it was refused with, if it was.
        answers: what was answered, where answers are kept; nothing where the request was refused.
        trace_id: of its trace, where that is exported.
    """

    method: str
    route: str
    status: int
    seconds: float
    problem: str | None
    answers: Sequence[Seen] = ()
    trace_id: str | None = None


class Observed:
    """One request, from its head to its answer; each phase is told by whoever did it.

    Args:
        keeps: whether its answers are kept.
        span: of the request; None where it has none.

    Attributes:
        seconds: that each phase took, by its name, in the order in which they ended first.
        answers: what was answered, where that is kept; else None.
        tokens: of its inputs that were answered.
        span: of the request.
        carried: the span of the process that asks, where that is another one.
    """

    __slots__ = ("answers", "carried", "seconds", "span", "tokens")

    def __init__(self, keeps: bool = False, span: "RequestSpan | None" = None, carried: Carried | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.answers: list[Seen] | None = [] if keeps else None
        self.tokens = 0
        self.span = span
        self.carried = carried

    def phase(self, name: str, start: float, end: float, batches: Sequence[Any] = ()) -> None:
        """A phase has ended; it may come several times, and counts together.

        Args:
            name: of the phase.
            start: on the monotonic clock of this process.
            end: likewise.
            batches: the spans of the batches that it consisted of.
        """
        self.seconds[name] = self.seconds.get(name, 0.0) + end - start
        if self.span is not None:
            self.span.phase(name, start, end, batches)

    def add(self, seconds: Mapping[str, float]) -> None:
        """So long phases took in another process."""
        for name, one in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + one

    @property
    def server_timing(self) -> str:
        """The header field `Server-Timing` (W3C): the phases in milliseconds, and the span; empty where nothing is."""
        entries = []
        if ANSWER in self.seconds:
            entries = [f"{name};dur={1000 * seconds:.3f}" for name, seconds in self.seconds.items()]
        if self.span is not None and self.span.sampled:
            entries.append(f'traceparent;desc="{self.span.carried[0]}"')
        return ", ".join(entries)
