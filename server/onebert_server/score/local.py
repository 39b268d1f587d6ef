"""Scores a job on this machine: one thread reads, one tokenizes, one computes, one writes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby

from onebert_encoder.compute.threads import compute_with
from onebert_server.score.ahead import ahead
from onebert_server.score.job import Job
from onebert_server.score.output import Output
from onebert_server.score.reading import Window, read_windows
from onebert_server.score.scorer import Prepared, Scorer

# Windows queued between two stages.
_WAITING = 2


def score_here(job: Job, output: Output, scorer: Scorer, threads: int, report: Callable[[Window], None]) -> None:
    """Scores every part of a job that is not finished yet; calls `report` for every window written."""
    with ExitStack() as opened:
        windows = opened.enter_context(ahead(read_windows(job, output.scored), _WAITING, "onebert-reader"))
        prepared = opened.enter_context(ahead(map(scorer.prepare, windows), _WAITING, "onebert-tokenizer"))
        computed = opened.enter_context(ahead(_compute(scorer, prepared, threads), _WAITING, "onebert-engine"))
        for name, of_part in groupby(computed, lambda one: one.window.part):
            with output.part(name) as part:
                for one in of_part:
                    part.add(scorer.answers(one))
                    report(one.window)


def _compute(scorer: Scorer, prepared: Iterator[Prepared], threads: int) -> Iterator[Prepared]:
    compute_with(threads)
    yield from scorer.compute(prepared)
