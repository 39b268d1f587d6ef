"""`onebert score`: finds tasks and files, makes the job, scores it, shows progress."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from onebert_server.score.job import Job
from onebert_server.score.output import MakeJob, Scores, open_output
from onebert_server.score.reading import Window, open_stream
from onebert_server.score.rows import ChosenColumns, choose_columns
from onebert_server.score.sources import Source, find_sources
from onebert_server.score.tasks import VECTOR, ScoredTask, find_tasks, require_takes, vectors_task
from onebert_server.settings import Settings
from onebert_server.versions.store import store_address
from onebert_store.command import console
from onebert_store.errors import InvalidInput
from onebert_store.tables.columns import Columns, columns_of_all, trained_columns
from onebert_store.tables.text.encoding import check_encoding


@dataclass(frozen=True)
class ScoreOptions:
    """The command line's arguments; None for a column, sheet or encoding means the default."""

    tasks: Sequence[str]
    data: Sequence[str]
    out: str
    text: str | None
    text_pair: str | None
    keep: Sequence[str]
    encoding: str | None
    all_scores: bool
    part_rows: int
    sheet: str | None = None
    vectors: bool = False


def run_score(options: ScoreOptions, settings: Settings, ray: str | None = None) -> None:
    """Scores the data, on this machine or the Ray cluster at an address; finished parts survive an error."""
    tasks = find_tasks(options.tasks, store_address(settings))
    if options.vectors and any(task.name == VECTOR for task in tasks):
        raise InvalidInput(f"a task is called {VECTOR}, and so would be its columns and those of --vectors")
    # Imported here, because torch takes long to import and a server needs none.
    if ray is None:
        from onebert_server.hosts import compute_threads, load_only_host, on_a_thread  # noqa: PLC0415
        from onebert_server.score.local import scorer_here  # noqa: PLC0415

        host = None
        if options.vectors:
            with console.busy("loading"):
                host = on_a_thread(compute_threads(settings), lambda: load_only_host(settings))
            tasks.append(vectors_task(host.base.spec, host.base.vectors))
        scorer = partial(scorer_here, settings, options.all_scores, tasks, host=host)
    else:
        from onebert_server.score.ray_cluster import scorer_on_cluster  # noqa: PLC0415

        scorer = partial(scorer_on_cluster, ray, settings, options.all_scores, tasks)
    _run(options, tasks, scorer)


def run_score_by_server(options: ScoreOptions, url: str, api_key: str | None) -> None:
    """Scores the data by versions of a server; finished parts survive an error."""
    from onebert_server.score.served import AskedServer  # noqa: PLC0415

    server = AskedServer(url, api_key)
    tasks = server.find_tasks(options.tasks)
    _run(options, tasks, partial(server.scorer, tasks))


def _run(
    options: ScoreOptions, tasks: Sequence[ScoredTask], scorer: Callable[[MakeJob], AbstractContextManager[Scores]]
) -> None:
    sources = find_sources(options.data, options.sheet)
    chosen = _choose(options, sources, tasks)
    require_takes(tasks, pair=len(chosen.texts) > 1)
    make_job = partial(
        Job,
        sources=sources,
        encoding=options.encoding,
        chosen=chosen,
        tasks=tasks,
        all_scores=options.all_scores,
        part_rows=options.part_rows,
    )
    with scorer(make_job) as (job, scores), open_output(options.out, job) as output:
        with _shown() as report:
            output.write(scores(output.scored), report)
        counts = output.finish()
        files = f"{counts['parts']:,} files in " if "parts" in counts else ""
        console.say(f"{counts['rows']:,} rows in {files}{options.out}, {counts['errors']:,} without an answer")


def _choose(options: ScoreOptions, sources: Sequence[Source], tasks: Sequence[ScoredTask]) -> ChosenColumns:
    """Chooses the columns by the first file and the tasks' trainings; the other files must have them as well."""
    if options.encoding is not None:
        check_encoding(options.encoding)
    # JSON and compressed files have to be read to their end for this.
    with console.busy(f"reading {sources[0].name}"), open_stream(sources[0], options.encoding) as stream:
        sample, named = stream.sample(), Columns(options.text, options.text_pair)
        columns = columns_of_all(named, [trained_columns(task.manifest) for task in tasks], sample)
        return choose_columns(sample, columns, options.keep, sources[0].name)


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
