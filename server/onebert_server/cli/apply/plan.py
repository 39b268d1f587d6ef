"""Compares a file with a server, says how they differ, and takes the steps; one that fails ends its task alone."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from onebert_server.cli.apply.difference import Difference, Known, Step, bases_of, difference
from onebert_server.cli.apply.form import TaskForm, other_tasks, parts, read_form, shared_files
from onebert_server.cli.refusals import showing_refusals
from onebert_server.client import Client, TaskSummary
from onebert_store.command import console
from onebert_store.errors import InvalidInput, OneBertError, ServerUnreachable, Unauthorized
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion

# Names in the line about what the file does not name.
NAMES_SHOWN = 12
_SIGNS = {"+": "add", "~": "change", "-": "remove"}


class Plan(NamedTuple):
    """The difference of each task that has one.

    Attributes:
        rest: tasks and aliases of the server that the file does not name.
        notes: what may be a slip of the pen.
    """

    tasks: Mapping[str, Difference]
    rest: Sequence[str]
    notes: Sequence[str]

    @property
    def steps(self) -> list[Step]:
        return [step for task in self.tasks.values() for step in task.steps]


def make_plan(client: Client, file: Path, message: str | None = None) -> Plan:
    """Compares a file with a server; `message` is why aliases move. Raises InvalidInput, a line a mistake."""
    (forms, mistakes), installed = read_form(file), parts()
    try:
        listed, bases = {task.name: task for task in client.tasks()}, bases_of(client)
        statuses = {status.name: status for status in client.status()}
    except OneBertError:
        if mistakes:
            raise InvalidInput("\n".join(mistakes)) from None
        raise
    tasks, known = dict[str, Difference](), set[str]()
    for name, form in forms.items():
        try:
            if name not in listed and not form.versions:
                near = suggestion(name, listed)
                raise InvalidInput(f"tasks.{name}: this server has no such task, and the file names no version{near}")
            there = _there(client, listed[name], form) if name in listed else {}
            known |= there.keys()
            of_task = Known(listed.get(name), statuses.get(name), there)
            tasks[name] = difference(client, name, form, of_task, installed, bases, message)
        except InvalidInput as error:
            mistakes.append(error.detail)
    if mistakes:
        raise InvalidInput("\n".join(mistakes))
    rest = [name for name in listed if name not in forms]
    for name in forms.keys() & listed.keys():
        rest += [f"{name}@{alias}" for alias in listed[name].aliases if alias not in forms[name].aliases]
    notes = [*shared_files(forms), *other_tasks(forms, known)]
    return Plan({name: task for name, task in tasks.items() if task.steps}, sorted(rest), notes)


def _there(client: Client, listed: TaskSummary, form: TaskForm) -> dict[str, int]:
    """The numbers of a task's versions by digest, without those that no alias means if the file names none of them."""
    there = {digest: int(number) for number, digest in listed.digests.items()}
    if all(version.digest in there for version in form.versions.values()):
        return there
    return {version.digest: version.version for version in client.task(listed.name).versions}


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
    if plan.rest:
        more = len(plan.rest) - NAMES_SHOWN
        shown = ", ".join(plan.rest[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        console.say(f"not in the file, and left as they are: {shown}")
    for note in plan.notes:
        console.tell(f"note: {note}")


def walk(client: Client, plan: Plan) -> bool:
    """Makes the server equal to the file, and says what failed; returns whether all of it went through."""
    steps = sorted(plan.steps, key=lambda step: step.phase)
    failed, taken = dict[str, str](), 0
    with console.progress() as bar:
        bar_task = bar.add_task("applying", total=len(steps))
        for step in steps:
            bar.advance(bar_task)
            if step.task in failed:
                continue
            place = f"{step.task}, {step.what}"
            try:
                with showing_refusals(False, place):
                    step.run(client, plan.tasks[step.task].numbers)
                taken += 1
            except OneBertError as error:
                failed[step.task] = f"{place}: {error.detail}"
                if isinstance(error, ServerUnreachable | Unauthorized):
                    # No other step can go through either.
                    break
    for line in failed.values():
        console.print_error(line)
    console.say(f"{taken} of {len(steps)} done" + (f"; stopped at: {', '.join(failed)}" if failed else ""))
    return not failed
