"""`onebert check-fleet`: whether every task answers its rows as it did before a change of the server."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebert_server.cli import options
from onebert_server.client import Client
from onebert_store.command import console
from onebert_store.disk import check_writable, write_whole
from onebert_store.errors import OneBertError
from onebert_store.file.strict_json import shown
from onebert_store.registry.names import LIVE

if TYPE_CHECKING:
    from onebert_server.cli.compare.pinned import Answers
    from onebert_server.cli.compare.reading import TaskRows


def check_fleet(
    data: Annotated[
        Path,
        options.INPUT.option(
            "A folder that has a file or a folder of rows for each task, named like the task.",
            "--data",
            metavar="FOLDER",
        ),
    ],
    answers: Annotated[
        Path,
        options.OUTPUT.option(
            "The file of answers: written if it is not there, else compared. It holds digests in place of texts.",
            "--answers",
            metavar="FILE",
        ),
    ],
    url: options.Url = options.URL,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that every task answers its rows as before, whatever has changed: base folder, kernel, dtype, library.

    The first run keeps the answers of all live versions in a file; a later one prints the tasks that are red: with
    other answers, or with scores off by more than 0.0001 (bfloat16: 0.04, int8: 0.21). A task whose live version or
    rows have changed since is named and not compared. To renew the answers, remove the file. The exit status is 1 where
    a task is red.
    """
    from onebert_server.cli.compare.pinned import read_answers, written  # noqa: PLC0415

    check_writable("--answers", answers)
    kept = read_answers(answers) if answers.exists() else None
    now, read, left_out = _answers(url, api_key, data)
    if kept is None:
        write_whole(answers, written(now))
        record: dict[str, Any] = {"written": sum(len(one.rows) for one in now.tasks.values())}
    else:
        record = _compared(kept, now, read, left_out)
    known = {one["task"] for one in record.get("red", ())}
    record |= {"tasks": len(now.tasks), "left_out": {name: why for name, why in left_out.items() if name not in known}}
    if as_json:
        console.print_json(record)
    else:
        _print(record)
    if record.get("red"):
        raise typer.Exit(1)


def _answers(url: str, api_key: str | None, data: Path) -> "tuple[Answers, dict[str, TaskRows], dict[str, str]]":
    """The answers of the live versions, the rows by task, and why tasks are left out."""
    from onebert_server.cli.compare.asking import ask  # noqa: PLC0415
    from onebert_server.cli.compare.pinned import Answers, replayed  # noqa: PLC0415
    from onebert_server.cli.compare.reading import HowToRead, read_tasks  # noqa: PLC0415

    with Client(url, api_key) as client:
        read, left_out = read_tasks(client, data, HowToRead(), lambda task: [task.aliases[LIVE]])
        base = client.base()
    dtypes = {one.digest: one.dtype for one in (base, *(base.bases or ()))}
    results = iter(ask(url, api_key, [item for one in read for item in one.items]))
    found = {}
    for one in read:
        own = [next(results) for _ in one.items]
        try:
            found[one.task] = replayed(one, own, dtypes.get(one.versions[0].manifest["base"]["digest"], base.dtype))
        except OneBertError as error:
            left_out[one.task] = error.detail
    return Answers(tasks=found), {one.task: one for one in read}, left_out


def _compared(
    kept: "Answers", now: "Answers", read: "Mapping[str, TaskRows]", left_out: Mapping[str, str]
) -> dict[str, Any]:
    """The red tasks, by falling number of other answers, the changed and the new tasks, and the dtypes then and now."""
    from onebert_server.cli.compare.pinned import compare  # noqa: PLC0415

    red, changed = list[dict[str, Any]](), dict[str, str]()
    for task, before in kept.tasks.items():
        if task not in now.tasks:
            # It answered before: a base that its delta does not fit is noticed here.
            why = left_out.get(task, "there is no such task")
            red.append({"task": task, "version": before.version, "rows": len(before.rows), "why": why})
            continue
        found = compare(before, now.tasks[task], read[task])
        if "changed" in found:
            changed[task] = found["changed"]
        elif found.pop("red"):
            red.append({"task": task, "version": before.version, **found})
    red.sort(key=lambda one: (-one.get("differ", one["rows"]), -one.get("largest", 0.0), one["task"]))
    dtypes = [sorted({one.dtype for one in each.tasks.values()}) for each in (kept, now)]
    return {"red": red, "changed": changed, "new": sorted(now.tasks.keys() - kept.tasks.keys()), "dtypes": dtypes}


def _print(record: Mapping[str, Any]) -> None:
    if "written" in record:
        console.say(f"{record['tasks']} tasks: the answers to {record['written']:,} rows are kept")
    else:
        before, now = (" and ".join(each) for each in record["dtypes"])
        if before != now:
            console.say(f"the answers were computed in {before}, now in {now}")
        if record["red"]:
            numbers = ("version", "rows", "answers differ", "scores by up to")
            console.show(("task", *numbers, "first"), map(_row, record["red"]), numbers)
        compared = record["tasks"] - len(record["changed"]) - len(record["new"])
        green = compared - sum("differ" in one for one in record["red"])
        console.say(f"{len(record['red'])} red; {green} of {compared} tasks answer as before")
        for task, why in record["changed"].items():
            console.say(f"not compared: {task}: {why}")
        if record["new"]:
            console.say(f"not in the file: {', '.join(record['new'])}")
    from onebert_server.cli.compare.reading import print_left_out  # noqa: PLC0415

    print_left_out(record["left_out"])


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    named = one["task"], str(one["version"]), str(one["rows"])
    if "why" in one:
        return *named, "all", "–", shown(one["why"], 200)
    return *named, str(one["differ"]), f"{one['largest']:.2g}", one["first"]
