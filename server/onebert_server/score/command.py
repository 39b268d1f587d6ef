"""`onebert score`: finds tasks and files, makes the job, scores it, and shows progress."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from onebert_server.garbage import collect_seldom
from onebert_server.hosts import compute_threads, load_only_host, on_a_thread
from onebert_server.score.job import Job
from onebert_server.score.local import score_here
from onebert_server.score.output import Parts, open_output
from onebert_server.score.reading import Window, open_stream
from onebert_server.score.rows import Chosen, choose_columns
from onebert_server.score.scorer import Scorer, require_takes
from onebert_server.score.sources import Source, find_sources
from onebert_server.score.tasks import ScoredTask, find_tasks
from onebert_server.settings import Settings
from onebert_server.store import store_address
from onebert_store.command import console
from onebert_store.tables.columns import Columns
from onebert_store.tables.text.encoding import check_encoding


@dataclass(frozen=True)
class Asked:
    """The command line's arguments; None for a column, sheet or encoding means the default."""

    tasks: Sequence[str]
    data: Sequence[str]
    out: str
    text: str | None
    text_pair: str | None
    kept: Sequence[str]
    encoding: str | None
    all_scores: bool
    part_rows: int
    ray: str | None
    sheet: str | None = None


# A job, and the function that scores its parts except the finished ones, by their names.
Scores: TypeAlias = tuple[Job, Callable[[frozenset[str]], Parts]]


def run_score(asked: Asked, settings: Settings) -> None:
    """Scores the data, or resumes an interrupted job; finished parts survive an error."""
    tasks, sources = find_tasks(asked.tasks, store_address(settings)), find_sources(asked.data, asked.sheet)
    chosen = _choose(asked, sources)
    require_takes(tasks, pair=len(chosen.texts) > 1)
    job_in = partial(
        Job,
        sources=sources,
        encoding=asked.encoding,
        chosen=chosen,
        tasks=tasks,
        all_scores=asked.all_scores,
        part_rows=asked.part_rows,
        batch_tokens=settings.max_batch_tokens,
    )
    scorer = _here(asked, settings, tasks, job_in) if asked.ray is None else _on_cluster(asked, settings, tasks, job_in)
    with scorer as (job, scores), open_output(asked.out, job) as output:
        with _shown() as report:
            output.write(scores(output.scored), report)
        counts = output.finish()
        written = f"{counts['rows']:,} rows in {counts['parts']:,} files in {asked.out}"
        console.say(f"{written}, {counts['errors']:,} without an answer")


@contextmanager
def _here(
    asked: Asked, settings: Settings, tasks: Sequence[ScoredTask], job_in: Callable[..., Job]
) -> Iterator[Scores]:
    threads = compute_threads(settings)
    scorer = _load(asked, settings, tasks, threads)
    collect_seldom()
    job = job_in(base=scorer.base.spec.digest, precision=scorer.base.dtype_name)
    yield job, lambda scored: score_here(job, scored, scorer, threads)


@contextmanager
def _on_cluster(
    asked: Asked, settings: Settings, tasks: Sequence[ScoredTask], job_in: Callable[..., Job]
) -> Iterator[Scores]:
    from onebert_server.score.ray_cluster import score_on_cluster  # noqa: PLC0415 - an optional package
    from onebert_store.command.cluster import connected  # noqa: PLC0415

    with connected(str(asked.ray), None if settings.device == "auto" else settings.device) as cluster:
        # Checks here that the tasks reproduce their trainer's golden logits, before the nodes start.
        loaded = _load(asked, settings.model_copy(update={"device": "cpu"}), tasks, torch.get_num_threads()).base
        fast = "bfloat16" if cluster.device == "cuda" else loaded.dtype_name
        job = job_in(base=loaded.spec.digest, precision=fast if settings.dtype == "auto" else settings.dtype)
        yield job, lambda scored: score_on_cluster(job, scored, settings.only_base, cluster.device, cluster.slots())


def _load(asked: Asked, settings: Settings, tasks: Sequence[ScoredTask], threads: int) -> Scorer:
    with console.busy("loading"):
        return on_a_thread(
            threads, lambda: Scorer(load_only_host(settings), tasks, settings.max_batch_tokens, asked.all_scores)
        )


def _choose(asked: Asked, sources: Sequence[Source]) -> Chosen:
    """Chooses the columns by the first file; the other files must have them as well."""
    if asked.encoding is not None:
        check_encoding(asked.encoding)
    # JSON and compressed files have to be read to their end for this.
    with console.busy(f"reading {sources[0].name}"), open_stream(sources[0], asked.encoding) as stream:
        return choose_columns(stream.sample(), Columns(asked.text, asked.text_pair), asked.kept, sources[0].name)


@contextmanager
def _shown() -> Iterator[Callable[[Window], None]]:
    started, scored, latest = time.monotonic(), 0, ""

    def report(window: Window) -> None:
        nonlocal scored, latest
        scored += len(window)
        rate = f"{scored / (time.monotonic() - started):,.0f} rows/s"
        latest = f"{window.skipped + scored:,} of {window.total:,} rows, {rate}"
        bar.update(shown, completed=window.skipped + scored, total=window.total, description=f"scoring, {rate}")

    with console.progress(describe=lambda: latest or "reading") as bar:
        shown = bar.add_task("scoring", total=None)
        yield report
