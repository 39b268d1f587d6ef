"""`onebert train`: trains by the options given, or as a version of a server or a delta file was trained (`--like`)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebert_store.command.options import URL, ApiKey, Panel, Url
from onebert_store.errors import AliasNotFound, InvalidInput
from onebert_training.cli import Data
from onebert_training.data.options import DataOptions
from onebert_training.fit.settings import Settings, refuse_steps
from onebert_training.options import OUTPUT, AsJson, BaseName, Device, Dtype, with_options

# torch and HTTP are imported inside the functions, so that `onebert --help` stays quick.
if TYPE_CHECKING:
    from onebert_server.client import Client, FeedbackRow
    from onebert_store.tables.tables import Source
    from onebert_training.earlier import EarlierTraining

LIKE = Panel("As an earlier version")
_DELTA = ".safetensors"


@with_options
def train(
    context: typer.Context,
    data: Data,
    reading: DataOptions,
    settings: Settings,
    task: Annotated[
        str | None,
        typer.Option(help="Name of the task; a-z, 0-9, '.', '_', '-'; else that of --like.", show_default=False),
    ] = None,
    like: Annotated[
        str | None,
        LIKE.option(
            "Train as this version was: TASK, TASK@3 or TASK@alias of a server, or a delta file. Other options replace "
            "its settings.",
            metavar="VERSION",
            show_default=False,
        ),
    ] = None,
    feedback: Annotated[
        bool, LIKE.option("Also train on the kept texts of the task that feedback has labeled.", "--feedback")
    ] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    base: BaseName = None,
    out: Annotated[
        Path | None,
        OUTPUT.option(
            "The file to write; else TASK.safetensors (for full: the folder TASK), with --like a name that is free."
        ),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a delta: everything a task adds to the frozen base, in one small file.

    The last evaluation is kept, unless an earlier one is really better on validation.
    An interrupted run continues when the same command is given again.
    Loss and metrics go to standard error, the result to standard output.
    """
    if like is None and task is None:
        raise typer.BadParameter("give --task, or --like")
    if feedback and (like is None or like.endswith(_DELTA)):
        raise typer.BadParameter("--feedback is the server's: it goes with --like TASK, TASK@3 or TASK@alias")
    if feedback and reading.more is not None:
        raise typer.BadParameter("give --feedback or --more, which both add rows")
    if like is None:
        refuse_steps(settings)  # before the slow imports
    from onebert_store.command import console  # noqa: PLC0415
    from onebert_training.commands.train import run_train  # noqa: PLC0415
    from onebert_training.prepared import prepare  # noqa: PLC0415

    earlier, rows = (None, None) if like is None else _earlier(like, feedback, url, api_key)
    given_options = {name for name in context.params if _is_given(context, name)}
    if earlier is not None:
        settings, reading = earlier.overridden(settings, reading, given_options)
        task, base, dtype = (
            task or earlier.task,
            base or earlier.manifest.base.name,
            dtype if "dtype" in given_options else earlier.dtype,
        )
    if task is None:
        raise typer.BadParameter(f"give --task: {like} names none")
    job = prepare(task, data, reading, settings, base, dtype, device, out, rows, console.busy, earlier)
    notes = []
    if earlier is not None:
        if "base" not in given_options:
            earlier.require_base(job.run.base.spec)
        notes = earlier.differences(job.run.data)
    run_train(job, notes, as_json)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _earlier(like: str, feedback: bool, url: str, api_key: str | None) -> "tuple[EarlierTraining, Source | None]":
    """The training of a file or of a version of a server, and the task's feedback if it is requested."""
    from onebert_store.file.format import load  # noqa: PLC0415
    from onebert_store.file.manifest import parse_manifest  # noqa: PLC0415
    from onebert_training.earlier import earlier_training  # noqa: PLC0415

    if like.endswith(_DELTA):
        return earlier_training(Path(like).name, load(Path(like)).manifest), None
    from onebert_server.client import Client  # noqa: PLC0415

    with Client(url, api_key) as client:
        task, version = _version(client, like)
        manifest = parse_manifest(client.version(task, version).manifest)
        earlier = replace(earlier_training(f"{task}@{version}", manifest), task=task)
        return earlier, _source(client.feedback_rows(task), task) if feedback else None


def _version(client: "Client", ref: str) -> tuple[str, int]:
    from onebert_store.registry.names import parse_ref  # noqa: PLC0415

    parsed = parse_ref(ref)
    if parsed.version is not None:
        return parsed.task, parsed.version
    aliases = client.task(parsed.task).aliases
    if parsed.alias not in aliases:
        raise AliasNotFound(f"{parsed.task} has no alias {parsed.alias}")
    return parsed.task, aliases[parsed.alias]


def _source(rows: "Sequence[FeedbackRow]", task: str) -> "Source":
    """Feedback as training rows, oldest first: of several rows of one text the last counts."""
    from onebert.tables import table_of  # noqa: PLC0415
    from onebert_store.command import console  # noqa: PLC0415
    from onebert_store.tables.tables import joined_source  # noqa: PLC0415

    if not rows:
        raise InvalidInput(f"{task} has no feedback whose text is kept")
    cells = [*_cells(sorted(rows, key=lambda row: row.at))]
    if without := len(rows) - len(cells):
        console.tell(f"note: {without:,} questions of the feedback have no answer, and are left out")
    return joined_source("feedback", {"train": table_of(cells, "feedback")}, single_file=True)


def _cells(rows: "Sequence[FeedbackRow]") -> Iterator[dict[str, Any]]:
    for row in rows:
        spans: Any = None if row.spans is None else [[span.start, span.end, span.label] for span in row.spans]
        if spans is not None and row.text_pair is not None:
            if not spans:
                continue  # each question of a training has an answer
            (start, end, _), *_ = spans
            spans = {"text": [row.text_pair[start:end]], "answer_start": [start]}
        # A name in a list is never taken for a list.
        name = None if row.label is None else [row.label]
        label = next((right for right in (name, row.labels, spans) if right is not None), row.value)
        pair = {} if row.text_pair is None else {"text_pair": row.text_pair}
        yield {"text": row.text, **pair, "label": label}
