"""`onebert review`: the review queue for a program for labeling, and its labels back as feedback."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from onebert_server.cli.options import INPUT, OUTPUT, URL, ApiKey, TaskName, Url
from onebert_server.client import Client
from onebert_server.client.references import version_of
from onebert_server.contract.feedback import Recorded
from onebert_server.contract.review import Order
from onebert_server.limits import MAX_ITEMS
from onebert_store.command import console
from onebert_store.disk import check_writable, write_whole
from onebert_store.errors import InvalidInput, SampleNotFound
from onebert_store.file.fields import label_fault
from onebert_store.file.strict_json import printable
from onebert_store.tables.spans import Span, answer_key, spans_in

# Reasons in one line, the most frequent first.
MAX_REASONS = 20

Program = Literal["label-studio", "argilla"]


def review(
    task: TaskName,
    tool: Annotated[Program, typer.Option(help="The program for labeling.", show_default=False)],
    out: Annotated[
        Path | None, OUTPUT.option("Write the queue to this file, for the program.", "--out", metavar="FILE")
    ] = None,
    labeled: Annotated[
        Path | None, INPUT.option("Record the labels in this file, which the program wrote.", "--in", metavar="FILE")
    ] = None,
    by: Annotated[Order, OUTPUT.option("The order of the queue: the most wanted texts first.")] = "margin",
    limit: Annotated[int, OUTPUT.option("Texts of the queue.", min=1, max=100)] = 20,
    url: Url = URL,
    api_key: ApiKey = None,
) -> None:
    """Write the texts to label next for Label Studio or Argilla, or record their labels as feedback.

    With --out, the queue has kept texts without feedback, with the answers of today. With --in, each label becomes
    feedback of the kind `review`, also one that the task does not have yet. A text is skipped if it has no label, or if
    people disagree, or if its record cannot be read. For a token task, labels are of spans.
    """
    if (out is None) == (labeled is None):
        raise typer.BadParameter("give --out FILE or --in FILE")
    with Client(url, api_key) as client:
        if labeled is not None:
            _record(client, task, labeled, tool)
        elif out is not None:
            _write(client, task, out, tool, by, limit)


def _write(client: Client, task: str, out: Path, tool: Program, by: Order, limit: int) -> None:
    from onebert_encoder.answering.stretches import is_bio  # noqa: PLC0415
    from onebert_server.extensions.feedback.labeling.tools import TOOLS  # noqa: PLC0415

    check_writable("--out", out)
    _require_labels(client, task)
    queue = client.review(task, by, limit)
    records = [TOOLS[tool].write(queue, item) for item in queue.items]
    write_whole(out, f"{json.dumps(records, indent=2)}\n".encode())
    labels = dict.fromkeys(label[2:] if is_bio(queue.labels) else label for label in queue.labels)
    console.say(f"{len(records):,} texts in {out}; labels: {printable(', '.join(filter(None, labels)), 1000)}")


def _record(client: Client, task: str, file: Path, tool: Program) -> None:
    from onebert_server.extensions.feedback.labeling.tools import TOOLS, read_labeled  # noqa: PLC0415

    task_type = _require_labels(client, task)
    # A file may have a text several times, each with the labels of other people.
    choices, texts = dict[str, list[list[Any]]](), dict[str, str]()
    records, skipped = read_labeled(file, TOOLS[tool])
    for record in records:
        # Somebody who submits nothing where several labels or none are right says that none is.
        chosen = [names for names in record.choices if names or task_type != "single_label"]
        choices.setdefault(record.id, []).extend(chosen)
        texts.setdefault(record.id, record.text)
    items = list[dict[str, Any]]()
    for id, chosen in choices.items():
        if reason := _fault(chosen, task_type, texts[id]):
            skipped[reason] += 1
        else:
            items.append({"id": id, "kind": "review", **_RIGHT[task_type](chosen[0])})
    starts = range(0, len(items), MAX_ITEMS)
    recorded = [row for start in starts for row in _send(client, items[start : start + MAX_ITEMS], skipped)]
    reasons = ", ".join(f"{count:,} {why}" for why, count in skipped.most_common(MAX_REASONS) if count)
    labels = Counter(label for row in recorded for label in row.new_labels or ())
    new = ", ".join(f"{printable(label, 80)} {count:,}" for label, count in labels.most_common(MAX_REASONS))
    console.say(
        f"{task}: feedback on {len(recorded):,} texts"
        + (f"; new labels: {new}" if new else "")
        + (f"; skipped: {reasons}" if reasons else "")
    )


_ENDS = ("start", "end", "label")
_RIGHT: Mapping[str, Callable[[Sequence[Any]], dict[str, Any]]] = {
    "single_label": lambda chosen: {"label": chosen[0]},
    "multi_label": lambda chosen: {"labels": chosen},
    "token": lambda chosen: {"spans": [dict(zip(_ENDS, span, strict=False)) for span in spans_in(chosen) or ()]},
}


def _fault(choices: Sequence[Sequence[Any]], task_type: str, text: str) -> str:
    """Why the labels that people chose for a text are no feedback; empty if they are."""
    answers: list[Any] = [spans_in(chosen) if task_type == "token" else chosen for chosen in choices]
    if not answers:
        return "without a label"
    if None in answers:
        return "with labels that are no spans"
    labels = [each.label if isinstance(each, Span) else each for answer in answers for each in answer]
    faults = (label_fault(label) if isinstance(label, str) else "is no name" for label in labels)
    if fault := next(filter(None, faults), ""):
        return f"with a label that {fault}"
    if task_type == "single_label" and any(len(answer) > 1 for answer in answers):
        return "with several labels for one text"
    return "on which people disagree" if len({answer_key(chosen, text or None) for chosen in choices}) > 1 else ""


def _send(client: Client, items: Sequence[Mapping[str, Any]], skipped: Counter[str]) -> list[Recorded]:
    try:
        return client.feedback(items)
    except (SampleNotFound, InvalidInput) as error:
        # One such item refuses a whole request.
        if len(items) > 1:
            return [row for item in items for row in _send(client, [item], skipped)]
        gone = isinstance(error, SampleNotFound)
        skipped["no longer kept" if gone else f"refused ({printable(error.detail.removeprefix('data.0: '), 200)})"] += 1
        return []


def _require_labels(client: Client, task: str) -> str:
    """The live version's type; raises InvalidInput for one without labels."""
    name, number = version_of(client, task)
    task_type = str(client.version(name, number).manifest["task_type"])
    if task_type not in _RIGHT:
        raise InvalidInput(f"{task} is a {task_type} task; onebert review takes {', '.join(_RIGHT)}")
    return task_type
