"""Collects facts about one request while it is answered: phases, answers, tokens, span."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onebert_store.registry.keeping import Keeping

# Phases of a request: read the body; tokenize; wait, including for the version to load; compute the batches; read and
# write the logits.
PARSE, TOKENIZE, QUEUE, FORWARD, ANSWER = "parse", "tokenize", "queue", "forward", "answer"

OTHER = "(other)"
"""Label value for all tasks, or labels, without a series of their own; no task can have this name."""

ABSTAINED = "(abstained)"
"""Replaces the labels of an answer that abstains."""

Carried = tuple[str, str]
"""A serialized span: `traceparent` and `tracestate` of W3C Trace Context."""


class Seen(NamedTuple):
    """One answer, for metrics: task, answered labels, top score (if any), version.

    `text`: a hash of the text, by which watching leaves out repeats; None if its task type is not watched, or a rule of
    the request changed the labels or the score. `cut`: whether a part of the text was left out.
    """

    task: str
    labels: tuple[str, ...] = ()
    score: float | None = None
    version: int = 0
    text: int | None = None
    cut: bool = False


class Kept(NamedTuple):
    """One answer that shall be kept: its id, the time in seconds since 1970, one or two texts, see `Seen` and `Sample`.

    `keeping` is the one by whose share it was chosen.
    """

    id: str
    at: float
    principal: str
    texts: tuple[str, ...]
    answer: Seen
    keeping: Keeping

    @property
    def size(self) -> int:
        """An upper bound of its bytes in memory."""
        return 1024 + sum(4 * len(text) for text in self.texts)


Samples = Callable[[Sequence[Kept]], None]
"""Gets chosen answers where they are made, on the event loop or in a worker thread, so it must not wait.

The request may still fail, for instance at its deadline.
"""


class FinishedRequest(NamedTuple):
    """One finished request, for metrics and logs.

    `route` is the template, so that task names never become label values. `problem` is the code of a typed error.
    `answers` is empty if answers are not kept or the request failed; `task` is then the one in its path, if any.
    """

    method: str
    route: str
    status: int
    seconds: float
    problem: str | None
    answers: Sequence[Seen] = ()
    trace_id: str | None = None
    task: str | None = None


class RequestSpan(Protocol):
    """The span of a request; only `tracing` depends on OpenTelemetry."""

    trace_id: str
    sampled: bool

    @property
    def carried(self) -> Carried:
        """The span, serialized for another process."""

    def phase(self, name: str, start: float, end: float, batches: Sequence[Any] = ()) -> None:
        """Adds a child span; see `Observed.phase`."""

    def end(self, ended: FinishedRequest, request_id: str) -> None: ...


class Observed:
    """One request, from its head to its answer; each component reports its own phase.

    `seconds` has the phases in the order in which they first ended; `answers` is None unless they are kept; `carried`
    is the span of the requesting process, if that is another one; `samples` gets chosen answers. `answers_id` begins
    the ids of kept answers, and replaces the request's id in the response once `any_kept`; a number ends them.
    `tokens`, `truncated`, `abstained` and `vectors_cut`: tokens read, answers to cut texts, answers that abstain, and
    vectors of which `dimensions` left a part.
    """

    __slots__ = (
        *("_numbered", "abstained", "answers", "answers_id", "any_kept", "carried"),
        *("samples", "seconds", "span", "tokens", "truncated", "vectors_cut"),
    )

    def __init__(
        self,
        keeps: bool = False,
        span: RequestSpan | None = None,
        carried: Carried | None = None,
        samples: Samples | None = None,
    ) -> None:
        self.seconds: dict[str, float] = {}
        self.answers: list[Seen] | None = [] if keeps else None
        self.tokens = self.truncated = self.abstained = self.vectors_cut = 0
        self.span = span
        self.carried = carried
        self.samples = samples
        self.answers_id, self.any_kept = "", False
        self._numbered = 0

    def number(self, questions: int) -> int:
        """Numbers so many further questions of the request, whatever asks them; returns the first number."""
        first = self._numbered
        self._numbered += questions
        return first

    def phases(self, phases: Sequence[tuple[str, float, float]], batches: Sequence[Any] = ()) -> None:
        """Records phases with start and end, in seconds on this process's monotonic clock; repeated ones add up.

        `batches`: the spans of the batches of the FORWARD phase.
        """
        seconds, span = self.seconds, self.span
        for name, start, end in phases:
            seconds[name] = seconds.get(name, 0.0) + end - start
            if span is not None:
                span.phase(name, start, end, batches if name == FORWARD else ())

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds the phases that another process measured."""
        for name, phase in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + phase

    @property
    def server_timing(self) -> str:
        """The `Server-Timing` header (W3C): phases in milliseconds, and the span; may be empty."""
        entries = []
        for name, seconds in self.seconds.items() if ANSWER in self.seconds else ():
            entries.append(f"{name};dur={1000 * seconds:.3f}")
        if self.span is not None and self.span.sampled:
            entries.append(f'traceparent;desc="{self.span.carried[0]}"')
        return ", ".join(entries)
