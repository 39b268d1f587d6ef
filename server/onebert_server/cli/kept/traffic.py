"""`onebert export-traffic`: a task's kept answers with the feedback on them, as rows for monitoring programs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onebert_server.cli.options import OUTPUT, URL, ApiKey, TaskName, Url
from onebert_server.client import Client, RightLabel, SampleRow, as_dict
from onebert_store.command import console
from onebert_store.disk import check_writable, written_whole
from onebert_store.tables.writers import WRITERS, ParquetWriter

# `target` and `prediction` are the names by which Evidently knows these columns; NannyML takes any.
_COLUMNS = ("timestamp", "id", "version", "prediction", "prediction_score", "target", "weight")
_TEXTS = ("text", "text_pair")


def export_traffic(
    task: TaskName,
    out: Annotated[
        Path,
        OUTPUT.option("The file to write: .parquet, .csv or .jsonl.", "--out", metavar="FILE", show_default=False),
    ],
    texts: Annotated[bool, OUTPUT.option("Also write the texts, in plain text.", "--texts")] = False,
    url: Url = URL,
    api_key: ApiKey = None,
) -> None:
    """Write all kept answers of a task, each with the latest feedback on it as `target`.

    Evidently and NannyML read these rows. `target` is empty where nobody has given feedback; `weight` is 1 / share.
    """
    ending = out.suffix.lower()
    if ending not in WRITERS:
        raise typer.BadParameter(f"--out ends in one of {', '.join(WRITERS)}")
    check_writable("--out", out)
    with Client(url, api_key) as client, written_whole(out) as file:
        task_type = client.task(task).versions[-1].task_type
        columns = (*_COLUMNS, *(_TEXTS if texts else ()))
        types = _types(task_type) if WRITERS[ending] is ParquetWriter else {}
        writer, rows, known = WRITERS[ending](file, columns, types), 0, 0
        for one in _samples(client, task):
            writer.add(_cells(one, task_type))
            rows, known = rows + 1, known + (one.right is not None)
        writer.end()
    console.say(f"{rows:,} rows in {out}, {known:,} with a target")


def _samples(client: Client, task: str) -> Iterator[SampleRow]:
    after: str | None = ""
    while after is not None:
        page = client.sample_rows(task, after)
        yield from page.samples
        after = page.next


def _cells(one: SampleRow, task_type: str | None) -> dict[str, Any]:
    label = one.labels[0] if one.labels else None
    return {
        "timestamp": one.at,
        "id": one.id,
        "version": one.version,
        "prediction": label if task_type in ("single_label", "regression", "span") else one.labels,
        "prediction_score": one.score,
        "target": None if one.right is None else _target(one.right),
        "weight": 1 / one.share,
        "text": one.text,
        "text_pair": one.text_pair,
    }


def _target(right: RightLabel) -> Any:
    """The label, labels, value or spans; files without lists have them as JSON."""
    facts = as_dict(right)
    return next(facts[name] for name in ("label", "labels", "spans", "value") if name in facts)


def _types(task_type: str | None) -> Mapping[str, Any]:
    import pyarrow  # noqa: PLC0415 - slow to import, and only Parquet needs it

    number = pyarrow.float64()
    types = {
        "timestamp": pyarrow.timestamp("us", "UTC"),
        "version": pyarrow.int64(),
        "prediction_score": number,
        "weight": number,
    }
    return types | ({"prediction": number, "target": number} if task_type == "regression" else {})
