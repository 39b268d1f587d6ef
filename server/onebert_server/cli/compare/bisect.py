"""`onebert bisect`: the version since which a text has its present answer, and how that version came about."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebert_server.cli import options
from onebert_server.cli.audit import history, time_of
from onebert_server.cli.compare.measured import training_of
from onebert_server.cli.references import version_of
from onebert_server.client import Client
from onebert_store.command import console
from onebert_store.errors import Forbidden, InvalidInput, VersionUnavailable
from onebert_store.file.strict_json import shown

if TYPE_CHECKING:
    from onebert_server.client import Input, TaskFacts, TaskResult


def bisect(
    ref: options.Ref,
    texts: Annotated[
        list[str], typer.Argument(help="A text, or the two of a pair.", metavar="TEXT [SECOND]", show_default=False)
    ],
    url: options.Url = options.URL,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the version since which a text has its present answer: its author, its time, its data, its changes.

    Every version of the task is asked at once. The present answer is the live version's, or the named version's. The
    last version before it that answers otherwise is compared with its successor. Versions that cannot be loaded are
    skipped and named.
    """
    from onebert_server.cli.compare.asking import ask  # noqa: PLC0415
    from onebert_server.cli.compare.diff import compare_files, print_norms  # noqa: PLC0415

    if len(texts) > 2:
        raise typer.BadParameter("give a TEXT, or the two of a pair")
    text: Input = texts[0] if len(texts) == 1 else (texts[0], texts[1])
    with Client(url, api_key) as client:
        task, present = version_of(client, ref)
        facts = client.task(task)
        answers = ask(url, api_key, [(f"{task}@{one.version}", text) for one in facts.versions])
        record = find_change(facts, answers, present)
        since, before = record["since"], record["before"]
        if before is not None:
            since |= _made(client, facts, since["version"])
            try:
                record |= compare_files(client, [(task, one["version"]) for one in (before, since)])[0]
            except (Forbidden, InvalidInput) as error:
                record["not_compared"] = error.detail
    if as_json:
        console.print_json(record)
        return
    _print(record)
    if "norms" in record:
        print_norms(record)
        console.say(f"\nmore: onebert diff {record['a']} {record['b']}")
    elif "not_compared" in record:
        console.say(f"the two files are not compared: {record['not_compared']}")


def find_change(facts: "TaskFacts", answers: "Sequence[TaskResult]", present: int) -> dict[str, Any]:
    """The last change of the answer up to the present version, as a JSON value.

    `since` is the first of the versions that give the present answer, without another answer between; `before` the
    version before it, None if all answer alike; `versions` has every answer, `skipped` the versions without one.
    Raises VersionUnavailable if the present version has no answer.
    """
    from onebert_server.cli.compare.differences import answer_of  # noqa: PLC0415

    both = list(zip(facts.versions, answers, strict=True))
    skipped = {one.version: answer.error.detail for one, answer in both if answer.error is not None}
    found: list[dict[str, Any]] = [
        {"version": one.version, "answer": answer_of(answer, str(one.task_type)), "score": answer.score}
        for one, answer in both
        if answer.error is None
    ]
    if present in skipped:
        raise VersionUnavailable(f"{facts.name}@{present}: {skipped[present]}")
    upto = [one for one in found if one["version"] <= present]
    same = list(takewhile(lambda one: one["answer"] == upto[-1]["answer"], reversed(upto)))
    return {
        "task": facts.name,
        "present": present,
        "since": dict(same[-1]),
        "before": upto[-1 - len(same)] if len(same) < len(upto) else None,
        "versions": found,
        "skipped": skipped,
    }


def _made(client: Client, facts: "TaskFacts", version: int) -> dict[str, Any]:
    """A version's time, method, data and author; the author is None if the key may not read the audit trail."""
    [one] = (one for one in facts.versions if one.version == version)
    made: dict[str, Any] = {"at": one.created_at, "by": None, "method": one.method}
    with suppress(Forbidden):
        uploads = [each for each in history(client, facts.name) if (each.action, each.version) == ("upload", version)]
        made["by"] = uploads[0].principal if uploads else "nobody in the audit trail"
    return made | training_of(client, facts.name, version)


def _print(record: Mapping[str, Any]) -> None:
    since, before = record["since"], record["before"]
    if before is None:
        console.say(f"no change: versions {since['version']} to {record['present']} all answer {_said(since)}")
    else:
        console.say(f"version {since['version']} is the first that answers {_said(since)}")
        console.say(f"version {before['version']} before it answered {_said(before)}")
        by = "somebody: this key may not read the audit trail" if since["by"] is None else since["by"]
        data = shown(f"{since.get('data', 'not recorded')} {since.get('data_digest', '')}", 200).strip()
        rows = (("made", f"{time_of(since['at'])} UTC"), ("by", shown(by)), ("data", data))
        console.out.print(console.filled(console.facts(), [*rows, ("method", shown(str(since["method"])))]))
    for version, why in record["skipped"].items():
        console.say(f"skipped: version {version}: {shown(why, 200)}")


def _said(one: Mapping[str, Any]) -> str:
    score = "" if one["score"] is None else f" ({one['score']:.4f})"
    return f"{shown(one['answer']) or 'none'}{score}"
