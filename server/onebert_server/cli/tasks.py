"""The commands `push`, `tasks` and `promote`."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from onebert_server.cli.audit import main_version, meaning, pages, time_of
from onebert_server.cli.completion import task_names
from onebert_server.cli.options import INPUT, URL, ApiKey, AsJson, TaskName, Url
from onebert_server.client import Change, Client, TargetFacts, TaskFacts, TaskSummary, VersionSummary, Wait, as_dict
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.command import console
from onebert_store.errors import (
    AliasNotFound,
    Forbidden,
    GateFailed,
    InvalidInput,
    NotFound,
    StoreCorrupt,
    VersionUnavailable,
)
from onebert_store.file.strict_json import shown

LIVE = "live"

GateFile = Annotated[
    Path | None,
    INPUT.option(
        "A gate to run before: gate.toml; default: the gate of the task, with --data.", "--gate", metavar="FILE"
    ),
]
GateRows = Annotated[
    str | None,
    INPUT.option("Labeled rows that the gate is about, if the server does not keep them.", "--data", metavar="DATA"),
]
Force = Annotated[bool, typer.Option("--force", help="Move past the task's gate; say why with --message.")]
Message = Annotated[
    str | None, typer.Option("--message", metavar="WHY", help="Why the gate is passed over, for the audit trail.")
]
# The most labels named in a line.
LABELS_SHOWN = 8


def push(
    file: Annotated[Path, typer.Argument(help="The delta file that `onebert train` wrote.", metavar="FILE")],
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Task to add the version to; default: the one that the file was trained for."
        ),
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make the new version live at once.")] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Upload a delta as the next version of a task.

    The server checks the file, and compares its own answers with those that the trainer recorded, before it takes it.
    The first version of a task is live; a later one becomes live with --promote or with `onebert promote`. The same
    content is the same version, however often it is pushed.
    """
    from onebert_store.file.format import load_with_bytes  # noqa: PLC0415

    delta, content = load_with_bytes(file)
    trained_for = delta.manifest.training.get("task")
    name = task or (trained_for if isinstance(trained_for, str) else None)
    if name is None:
        raise InvalidInput("the file does not name its task; use --task")
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        pushed = client.push(name, content)
        moved = move(client, name, LIVE, pushed.version) if promote else None
        live = client.task(name).aliases.get(LIVE)
    if as_json:
        console.print_json(as_dict(pushed) | ({"promoted": moved} if moved else {}))
        return
    state = "is version" if pushed.created else "was already version"
    console.say(f"{name}: {file.name} {state} {pushed.version} ({pushed.digest[:19]}…)")
    if moved:
        print_move(moved)
    elif live == pushed.version:
        data = delta.manifest.training.get("data")
        texts = '--pair "a text" "another"' if isinstance(data, Mapping) and data.get("pairs") is True else '"a text"'
        console.say(f"it is live: `onebert classify {name} {texts}{_at(url)}` asks it")
    else:
        console.say(f"next: onebert promote {name} {pushed.version}{_at(url)}  (live is {live or 'no version'})")


def _at(url: str) -> str:
    """The --url option for a suggested command, if the server is not the default one."""
    return "" if url == (os.environ.get("ONEBERT_URL") or URL) else f" --url {url}"


def tasks(
    task: Annotated[
        str | None, typer.Argument(help="Show the versions of this task.", metavar="TASK", autocompletion=task_names)
    ] = None,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks of a server, or the versions of one task with what each was trained on and how good it was."""
    with Client(url, api_key) as client:
        if task is None:
            listed, heads = client.tasks(), ("task", "live", "versions", "aliases")
            record = [as_dict(one) for one in listed] if as_json else None
            console.show(heads, map(_task_row, listed), ("live", "versions"), record)
            return
        found = client.task(task)
        training = {v.version: training_of(client, task, v.version) for v in found.versions}
    versions = [as_dict(v) | {"training": training[v.version]} for v in found.versions]
    _show_versions(found, training, as_dict(found) | {"versions": versions} if as_json else None)


def promote(
    task: TaskName,
    version: Annotated[
        str | None, typer.Argument(help="Version that the alias shall point at.", metavar="VERSION")
    ] = None,
    alias: Annotated[
        str, typer.Option(metavar="ALIAS", help="Alias to move; one that does not exist is created.")
    ] = LIVE,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback",
            help="Move the alias back to where it was before; a second time, after a question, undoes the first.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Answer the question whether a version that was rolled back shall come back.")
    ] = False,
    gate: GateFile = None,
    data: GateRows = None,
    force: Force = False,
    message: Message = None,
    wait_all: Annotated[
        bool, typer.Option("--wait-all", help="Return when every live server of the registry shows the move.")
    ] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Point an alias of a task at a version, or roll it back.

    If somebody else moves the alias at the same time, the command fails and changes nothing. Requests under way are
    answered by the version that they began with. The scores that the trainer measured of both versions are shown, and
    labels that are not the same. A version that does not pass the task's gate is refused with each check.
    """
    check_gate_options(gate, data, force, message)
    if "@" in task:
        name, _, other = task.partition("@")
        what = "--rollback" if rollback else version or other
        raise typer.BadParameter(f"{task} is not the name of a task: write `onebert promote {name} {what}`")
    if (version is None) != rollback:
        raise typer.BadParameter("give a VERSION, or --rollback")
    # The task's gate may have two thousand rows.
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        to = _before(client, task, alias, yes) if version is None else number_of(version)
        with showing_refusals(as_json):
            moved = move(client, task, alias, to, "all" if wait_all else None, (gate, data), message)
    print_move(moved, as_json)


def check_gate_options(gate: Path | None, data: str | None, force: bool, message: str | None) -> None:
    """Raises BadParameter if the options about a gate contradict each other."""
    if force != (message is not None) or (force and (gate or data)):
        raise typer.BadParameter("to move past a gate: --force --message WHY, without --gate and --data")


@contextmanager
def showing_refusals(as_json: bool) -> Iterator[None]:
    """Prints the report of a gate that refuses; the error goes on."""
    try:
        yield
    except GateFailed as error:
        from onebert_server.cli.gate.running import print_report  # noqa: PLC0415 - slow to import

        if error.report is not None:
            (console.print_json if as_json else print_report)(error.report)
        raise


def number_of(version: str) -> int:
    """A version number from an argument; it has at most 18 digits."""
    if not re.fullmatch(r"[0-9]{1,18}", version) or int(version) == 0:
        raise typer.BadParameter(f"{shown(version, 40)!r} is not a version number")
    return int(version)


def move(
    client: Client,
    task: str,
    alias: str,
    to: int | TargetFacts,
    wait: Wait | None = None,
    gate: tuple[Path | None, str | None] = (None, None),
    message: str | None = None,
) -> dict[str, Any]:
    """Moves the alias from its present meaning, and compares the versions that answer most.

    `gate` has a file of rules, and rows, for a gate that runs here before; `message` moves past the task's gate.
    """
    found = client.task(task)
    current, target = found.aliases.get(alias), found.targets.get(alias)
    version = to if isinstance(to, int) else main_version(to)
    if to != (target or current):
        # The gate is about the version that does not answer yet; a split brings in one at a time.
        answering = {*target.split} if target else {str(current)}
        shares = [str(to)] if isinstance(to, int) else [*to.split]
        new = next((int(one) for one in shares if one not in answering), version)
        report = _report(client, task, new, found.aliases.get(LIVE), *gate) if any(gate) else None
        client.move_alias(task, alias, to, target.tag if target else current, wait, report=report, message=message)
    manifests = {each: _manifest(client, task, each) for each in (current, version) if each is not None}
    measured = {str(each): _training(manifest) for each, manifest in manifests.items()}
    changed = [] if current is None else _changed(current, manifests[current], manifests[version])
    rollout = not isinstance(to, int)
    targets = {"target": to if rollout else None} if rollout or target else {}
    sides = {"from": current, "to": version, **targets}
    return {"task": task, "alias": alias, **sides, "measured": measured, "changed": changed}


def _report(client: Client, *about: Any) -> dict[str, Any] | None:
    from onebert_server.cli.gate.running import report_of  # noqa: PLC0415 - slow to import

    return report_of(client, *about)


def _before(client: Client, task: str, alias: str, yes: bool) -> int | TargetFacts:
    """The alias's previous meaning; asks for confirmation (unless `yes`) if its version was rolled back."""
    found, ref = client.task(task), f"{task}@{alias}"
    at, before = at_alias(found, alias), found.previous.get(alias)
    if before is None:
        raise InvalidInput(f"{ref} was never at another version")
    target = client.alias(task, alias).previous_target
    needed = {before} if target is None else {*map(int, target.split), *(one.version for one in target.shadow or ())}
    if gone := sorted(needed - {version.version for version in found.versions}):
        raise InvalidInput(f"{ref} was at version {gone[0]} before, which is deleted; name a version")
    if before > at and not yes:
        when = _rolled_back_at(client, task, alias, before)
        going = f"{ref} goes from {at} back to {before}, which was rolled back{when}"
        if not sys.stdin.isatty():
            raise InvalidInput(f"{going}; say --yes, or name a version")
        typer.confirm(f"{going}; go on?", abort=True, err=True)
    return target or before


def at_alias(found: TaskFacts, alias: str | None) -> int:
    """The version that an alias of a task points at; raises AliasNotFound."""
    if alias not in found.aliases:
        raise AliasNotFound(f"{found.name} has no alias {alias}")
    return found.aliases[alias]


def _answering(found: TaskFacts, alias: str) -> Iterable[str]:
    """The numbers of the versions that answer an alias."""
    target = found.targets.get(alias)
    return target.split if target else [str(found.aliases[alias])]


def tag_of(found: TaskFacts, alias: str) -> int | str:
    """The tag of an alias's meaning, which a change of it names; raises AliasNotFound."""
    target = found.targets.get(alias)
    return at_alias(found, alias) if target is None else str(target.tag)


def _rolled_back_at(client: Client, task: str, alias: str, version: int) -> str:
    """When a version lost the alias by a rollback; empty if the key may not read the audit trail."""
    of_alias = list[Change]()
    with suppress(Forbidden):
        of_alias += [one for one in pages(client, {"task": task}) if (one.alias, one.before) == (alias, version)]
    return next((f" at {time_of(one.at)} UTC" for one in reversed(of_alias) if one.rolled_back), "")


def training_of(client: Client, task: str, version: int) -> dict[str, Any]:
    """The training data and score recorded in a version's file; empty if unknown."""
    return _training(_manifest(client, task, version))


def _manifest(client: Client, task: str, version: int) -> dict[str, Any]:
    try:
        return client.version(task, version).manifest
    except (NotFound, StoreCorrupt, VersionUnavailable):
        return {}


def _training(manifest: Mapping[str, Any]) -> dict[str, Any]:
    from onebert_store.command.inspection import measured_on  # noqa: PLC0415

    # A file may be written by hand: check the type of everything that it records about training.
    said = manifest.get("training")
    facts: dict[str, Any] = dict(said) if isinstance(said, Mapping) else {}
    data, metric = facts.get("data"), facts.get("metric")
    known: dict[str, Any] = {}
    if isinstance(data, Mapping):
        known |= {name: data[key] for name, key in (("data", "name"), ("data_digest", "digest")) if key in data}
    for split in ("test", "validation"):
        scores = facts.get(split)
        if isinstance(metric, str) and isinstance(scores, Mapping) and isinstance(scores.get(metric), int | float):
            return known | {"metric": metric, "split": measured_on(facts, split), "score": float(scores[metric])}
    return known


def _changed(version: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Changes that break clients: different labels, different positive labels."""
    if not (before and after):
        return []
    found = []
    gone, new = _without(before["labels"], after["labels"]), _without(after["labels"], before["labels"])
    if gone and new:
        found.append(f"its labels differ: {_listed(new)} instead of {_listed(gone)}")
    elif gone or new:
        found.append(f"its labels differ: {f'also {_listed(new)}' if new else f'no longer {_listed(gone)}'}")
    flagged, flags = ((each.get("decision") or {}).get("positives") or [] for each in (before, after))
    if flagged and set(flagged) != set(flags):
        own = f"its positive labels are {_listed(flags)}" if flags else "it names no positive label"
        found.append(f"{own}; version {version} flags {_listed(flagged)}")
    return found


def _without(labels: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [label for label in labels if label not in known]


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - LABELS_SHOWN
    return ", ".join(map(shown, labels[:LABELS_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _not_alike(measured: Sequence[Mapping[str, Any]]) -> str | None:
    """How the measurements of two versions differ; None if they are comparable, or one was not measured."""
    if len(measured) < 2 or not all("score" in known for known in measured):
        return None
    names = {"split": "split", "metric": "metric", "data_digest": "data"}
    differ = [name for key, name in names.items() if len({str(known.get(key)) for known in measured}) > 1]
    return f"not of the same {' and '.join(differ)}" if differ else None


def _task_row(task: TaskSummary) -> tuple[str, ...]:
    others = [
        f"{name} → {meaning(task.targets.get(name), at)}" + (f" (before: {before})" if before else "")
        for name, at in task.aliases.items()
        if (before := task.previous.get(name)) or name != LIVE
    ]
    live = meaning(task.targets.get(LIVE), task.aliases[LIVE]) if LIVE in task.aliases else "–"
    return task.name, live, str(len(task.versions)), ", ".join(others)


def _show_versions(found: TaskFacts, training: Mapping[int, Mapping[str, Any]], record: Any) -> None:
    measured = {_measure(known) for known in training.values() if "score" in known}
    # If all versions have the same measure, its name is the column's head; otherwise it precedes each score.
    head = shown(measured.pop()) if len(measured) == 1 else "score"
    answering = all(v.status != "unavailable" for v in found.versions)

    def row(v: VersionSummary) -> tuple[str, ...]:
        known = training[v.version]
        name = shown(f"{_measure(known)} ") if head == "score" and "score" in known else ""
        return (
            str(v.version),
            ", ".join(alias for alias in found.aliases if str(v.version) in _answering(found, alias)),
            f"{name}{known['score']:.4f}" if "score" in known else "–",
            shown(str(known.get("data", "–"))),
            shown(v.method or "–"),
            "–" if v.labels is None else str(v.labels),
            f"{v.created_at:%Y-%m-%d}",
            *(() if answering else (shown(f"{v.status}: {v.reason}" if v.reason else v.status),)),
        )

    columns = ("version", "aliases", head, "data", "method", "labels", "created", *(() if answering else ("status",)))
    console.show(columns, map(row, found.versions), ("version", head, "labels"), record)


def _measure(known: Mapping[str, Any]) -> str:
    return f"{known['split']} {known['metric']}"


def print_move(moved: Mapping[str, Any], as_json: bool = False) -> None:
    """Prints the result of `move`: the two versions, their scores, and how to go back."""
    if as_json:
        target = moved.get("target")
        console.print_json({**moved, "target": as_dict(target)} if target else moved)
        return
    ref, before, after = f"{moved['task']}@{moved['alias']}", moved["from"], moved["to"]
    if before == after and "target" not in moved:
        console.say(f"{ref}: is at version {after} already")
        return
    console.say(f"{ref}: {before or 'new'} → {meaning(moved.get('target'), after)}")
    for version, known in moved["measured"].items():
        if "score" in known:
            where = f" on {shown(str(known['data']))}" if "data" in known else ""
            console.say(f"  version {version}: {_measure(known)} {known['score']:.4f}{where}")
    if doubt := _not_alike(list(moved["measured"].values())):
        console.say(f"  the two scores may not be comparable: {doubt}")
    for line in moved["changed"]:
        console.say(f"  {line}")
    if before:
        option = "" if moved["alias"] == LIVE else f" --alias {moved['alias']}"
        back = "--rollback" if "target" in moved else before
        console.say(f"to go back: onebert promote {moved['task']} {back}{option}")
