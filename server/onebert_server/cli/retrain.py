"""`onebert retrain`: trains the next version of a task as an earlier one was, with the feedback that has come since."""

import json
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from onebert_server.cli.gate.refusals import showing_refusals
from onebert_server.cli.moving import json_of, move, print_move
from onebert_server.cli.options import URL, ApiKey, AsJson, Ref, Url
from onebert_server.cli.references import version_of
from onebert_server.client import Client, FeedbackRow, ShadowShare, TargetFacts, as_dict
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.command import console
from onebert_store.command.process import record_of
from onebert_store.errors import InvalidInput
from onebert_store.registry.names import LIVE

# Training's own default number of epochs, and the least number of steps that few rows get. A run by contrast from the
# exact head gets `_FEW_EPOCHS`, within `_FEW_STEPS` and `_LEAST_STEPS` steps.
_EPOCHS, _LEAST_STEPS = 4, 100
_FEW_EPOCHS, _FEW_STEPS = 32, 50


def retrain(
    ref: Ref,
    data: Annotated[
        str, typer.Option(help="The data that the version was trained on.", metavar="DATA", show_default=False)
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(help="After --: options of `onebert train`, such as --base or --train-rows.", metavar="OPTIONS"),
    ] = None,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Also train on the kept texts that feedback has labeled.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The file to write; else TASK.safetensors.", metavar="FILE")] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Make the new version a shadow of the live one.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Make it live, if the task's gate lets it.")] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Train the next version of a task by the manifest of its live one, or of the named one, and push it.

    Method, settings and seed are the version's own; its data are known by their digest, and others are refused before
    anything is pushed. With --feedback, a text that the data has already gets the label that came back.
    """
    if shadow and promote:
        raise typer.BadParameter("give --shadow or --promote")
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        task, number = version_of(client, ref)
        manifest = client.version(task, number).manifest
        came_back = client.feedback_rows(task) if feedback else []
        file = out or Path(f"{task}.safetensors")
        record = _trained(task, manifest, data, came_back, file, options or [])
        wanted = ((manifest.get("training") or {}).get("data") or {}).get("digest")
        if record["data"]["digest"] != wanted:
            raise InvalidInput(
                f"{data} are not the data of {task}@{number}: digest {record['data']['digest']}, not {wanted}; "
                f"{file} is not pushed"
            )
        pushed = client.push(task, file)
        moved = None
        if shadow or promote:
            with showing_refusals(as_json):
                to = _with_shadow(client, task, pushed.version) if shadow else pushed.version
                moved = move(client, task, LIVE, to)
    if as_json:
        console.print_json({**as_dict(pushed), "training": record, **({"moved": json_of(moved)} if moved else {})})
        return
    added = record["data"].get("more", {}).get("rows", 0)
    console.say(f"{task}: {file.name} is version {pushed.version}, with {added:,} rows that came back")
    if moved:
        print_move(moved)
    else:
        console.say(
            f"next: onebert rollout {task} --shadow {pushed.version}, or onebert promote {task} {pushed.version}"
        )


def settings_of(manifest: Mapping[str, Any]) -> list[str]:
    """The options of `onebert train` that a version was trained with, without the defaults that follow the data."""
    said: Mapping[str, Any] = manifest.get("training") or {}
    positives = (manifest.get("decision") or {}).get("positives") or []
    found = {
        "--method": manifest.get("method"),
        "--base": manifest["base"]["name"],
        "--task-type": manifest["task_type"],
        "--pooling": manifest["pooling"],
        "--max-length": manifest["max_length"],
        "--positive": ",".join(positives) if not any("," in label for label in positives) else None,
        "--class-weight": said.get("class_weight"),
        "--epochs": _epochs(said),
        "--batch-size": said.get("batch_size"),
        "--lr": said.get("learning_rate"),
        "--head-lr": said.get("head_learning_rate"),
        # A contest chose it, and chooses again.
        "--start": None if "contest" in said else said.get("start"),
        "--seed": said.get("seed"),
        "--metric": said.get("metric"),
        "--dtype": said.get("dtype"),
    }
    return [str(part) for name, value in found.items() if value not in (None, "") for part in (name, value)]


def _epochs(said: Mapping[str, Any]) -> int | None:
    """The passes that somebody asked for; None for training's own number, which follows the number of rows."""
    steps, epochs = said.get("steps"), said.get("epochs")
    if not steps or not epochs:
        return None
    passes, each = ceil(epochs), max(1, round(steps / epochs))
    warm = said.get("contrastive") and said.get("start") == "head"
    least = min(_LEAST_STEPS, max(_FEW_STEPS, _FEW_EPOCHS * each)) if warm else _LEAST_STEPS
    return None if passes == max(_EPOCHS, ceil(least / each)) else passes


def _trained(
    task: str, manifest: Mapping[str, Any], data: str, came_back: Iterable[FeedbackRow], out: Path, options: list[str]
) -> dict[str, Any]:
    """Runs `onebert train`; texts that came back are in a folder of this user alone while it runs."""
    cells = list(_cells(came_back))
    arguments = ["--task", task, "--data", data, "--out", str(out), *settings_of(manifest), *options]
    with TemporaryDirectory() as folder:
        if cells:
            more = Path(folder, "feedback.jsonl")
            more.write_text("".join(f"{json.dumps(row)}\n" for row in cells), encoding="utf-8")
            arguments += ["--more", str(more)]
        return record_of("train", *arguments, report=console.tell)


def _cells(came_back: Iterable[FeedbackRow]) -> Iterable[dict[str, Any]]:
    """Rows of a table that training reads; raises InvalidInput for spans, which have no such rows."""
    for row in sorted(came_back, key=lambda row: row.at):
        if row.spans is not None:
            raise InvalidInput("onebert retrain reads feedback on whole texts, not on spans")
        right = row.label if row.label is not None else row.labels if row.labels is not None else row.value
        pair = {} if row.text_pair is None else {"text_pair": row.text_pair}
        yield {"text": row.text, **pair, "label": right}


def _with_shadow(client: Client, task: str, version: int) -> TargetFacts:
    """The live alias's meaning with one more shadow, which computes every request."""
    place = client.alias(task, LIVE)
    now = place.target or TargetFacts({str(place.version): 100})
    others = [one for one in now.shadow or () if one.version != version]
    return TargetFacts(now.split, now.sticky, [*others, ShadowShare(version, 100)])
