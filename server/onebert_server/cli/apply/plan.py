"""Reads a file and a server, and says how they differ."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from onebert_server.cli.apply.deltas import Delta, read_deltas, shared_files
from onebert_server.cli.apply.difference import Difference, Step, difference
from onebert_server.cli.apply.form import TaskForm, read_form
from onebert_server.cli.apply.part import parts
from onebert_server.cli.apply.present import read_present
from onebert_server.client import Client
from onebert_store.command import console
from onebert_store.errors import InvalidInput
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion

# Names in the line about what the file does not name.
NAMES_SHOWN = 12
_SIGNS = {"+": "add", "~": "change", "-": "remove"}


class Plan(NamedTuple):
    """The difference of each task that has one.

    Attributes:
        left: tasks and aliases of the server that the file does not name.
        notes: what may be a slip of the pen.
    """

    tasks: Mapping[str, Difference]
    left: Sequence[str]
    notes: Sequence[str]

    @property
    def steps(self) -> list[Step]:
        return [step for task in self.tasks.values() for step in task.steps]


def make_plan(client: Client, file: Path) -> Plan:
    """Compares a file with a server; raises InvalidInput with the name of the file and the path of the wrong key."""
    try:
        forms = read_form(file, parts())
        deltas = {name: read_deltas(form) for name, form in forms.items()}
        listed = client.tasks()
        known = {task.name for task in listed}
        differences = {name: _compared(client, name, form, deltas[name], known) for name, form in forms.items()}
    except InvalidInput as error:
        raise InvalidInput(f"{file.name}: {error.detail}") from None
    left = [task.name for task in listed if task.name not in forms]
    left += [
        f"{task.name}@{alias}"
        for task in listed
        if task.name in forms
        for alias in task.aliases
        if alias not in forms[task.name].aliases
    ]
    changed = {name: each for name, each in differences.items() if each.steps}
    return Plan(changed, left, shared_files(deltas.values()))


def _compared(client: Client, name: str, form: TaskForm, deltas: Mapping[str, Delta], known: set[str]) -> Difference:
    if name not in known and not deltas:
        near = suggestion(name, known)
        raise form.key.wrong(f"this server has no task {name}, and the file names no version of it{near}")
    present = read_present(client, name, parts(), form.parts) if name in known else None

    def manifest() -> Manifest:
        last = [*deltas.values()][-1] if deltas else None
        if last is not None and last.manifest is not None:
            return last.manifest
        numbers = present.numbers if present else {}
        number = numbers.get(last.digest) if last else max(numbers.values())
        return parse_manifest(client.version(name, number or 0).manifest)

    return difference(name, form, deltas, present, parts(), manifest)


def say_plan(plan: Plan) -> None:
    """Prints the steps by their tasks, their number, and what is left alone."""
    width = max((len(step.what) for step in plan.steps), default=0)
    for task, steps in groupby(plan.steps, key=lambda step: step.task):
        console.say(task)
        for step in steps:
            console.say(f"  {step.sign} {step.what:{width}}  {printable(step.words, 400)}")
    counts = {name: sum(step.sign == sign for step in plan.steps) for sign, name in _SIGNS.items()}
    summary = ", ".join(f"{count} to {name}" for name, count in counts.items())
    console.say(summary if plan.steps else "no difference")
    if plan.left:
        rest = len(plan.left) - NAMES_SHOWN
        shown = ", ".join(plan.left[:NAMES_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")
        console.say(f"not in the file, and left as they are: {shown}")
    for note in plan.notes:
        console.tell(f"note: {note}")
