"""The difference between a file and a server: the steps that make them equal, in an order in which each is safe."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from onebert_server.cli.apply.deltas import Delta
from onebert_server.cli.apply.form import Meaning, TaskForm
from onebert_server.cli.apply.part import Part
from onebert_server.client import Client
from onebert_server.contract.moves import meaning
from onebert_server.http.schemas.tasks import rollout_of
from onebert_store.errors import InvalidInput
from onebert_store.file.manifest import Manifest
from onebert_store.registry.names import LIVE
from onebert_store.registry.target import Target

Numbers = dict[str, int]
"""The numbers of a task's versions by their names in the file; one that is not pushed yet has the likely next one."""


class Phase(IntEnum):
    """Versions come first, since they are pushed without `live` and change no answer; gates judge the moves."""

    PUSH, BEFORE_MOVES, MOVE, AFTER_MOVES = range(4)


class Step(NamedTuple):
    """One line of the difference, and the call that takes it away.

    Attributes:
        sign: `+`, `~` or `-`.
        what: the version, the alias or the part.
        run: makes it so; a push enters the number of its version.
    """

    task: str
    phase: Phase
    sign: str
    what: str
    words: str
    run: Callable[[Client, Numbers], object]


class Present(NamedTuple):
    """A task as the server has it, with the parts that the file names.

    Attributes:
        numbers: versions by their digests.
        aliases, tags: the meaning of each alias, and its tag, which a move of the alias names.
    """

    numbers: Mapping[str, int]
    aliases: Mapping[str, Target]
    tags: Mapping[str, int | str]
    parts: Mapping[str, Any]


class Difference(NamedTuple):
    """The steps of one task, as the file orders them."""

    steps: list[Step]
    numbers: Numbers


def difference(
    name: str,
    form: TaskForm,
    deltas: Mapping[str, Delta],
    present: Present | None,
    parts: Sequence[Part],
    manifest: Callable[[], Manifest],
) -> Difference:
    """Compares one task; raises InvalidInput for a key that this server cannot fulfil.

    Args:
        present: None: the server does not have the task.
        manifest: reads the manifest of the last version that the file names.
    """
    at = present.numbers if present else {}
    new = [each for each, delta in deltas.items() if delta.digest not in at]
    # The server counts in the order of the pushes.
    likely = {each: number for number, each in enumerate(new, max(at.values(), default=0) + 1)}
    numbers = likely | {each: at[delta.digest] for each, delta in deltas.items() if each not in likely}
    steps = [_push(name, each, deltas[each]) for each in new]
    before, names = present.aliases if present else {}, {number: each for each, number in likely.items()}
    # As after a single push, the first version of a task is live, also if an earlier walk ended before its move.
    first: Mapping[str, Meaning | None] = {} if before or not deltas else {LIVE: Meaning({next(iter(deltas)): 100})}
    for alias, wanted in {**first, **form.aliases}.items():
        sides = _Sides(before.get(alias), wanted.target(numbers) if wanted else None, names)
        if sides.before != sides.after:
            steps.append(_move(name, alias, wanted, sides, present and present.tags.get(alias)))
    for part in parts:
        if part.key in form.parts:
            has = present and present.parts[part.key]
            steps += _set(name, part, form.parts[part.key], has, manifest)
    return Difference(steps, numbers)


def _push(task: str, name: str, delta: Delta) -> Step:
    file = delta.file
    if file is None:
        raise delta.key.wrong(
            f"no version of {task} on this server has the digest {delta.digest}, and no file is there"
        )

    def run(client: Client, numbers: Numbers) -> None:
        from onebert_store.file.format import load_with_bytes  # noqa: PLC0415

        # Read once more: the files of all tasks together may not fit into memory.
        now, content = load_with_bytes(file)
        if now.digest != delta.digest:
            raise InvalidInput(f"{file.name} has changed since the difference was printed")
        numbers[name] = client.push(task, content, live=False).version

    words = f"{file.name} ({delta.size:,} bytes, {delta.digest[:19]}…)"
    return Step(task, Phase.PUSH, "+", f"version {name}", words, run)


class _Sides(NamedTuple):
    """The targets of a move, and by their likely numbers the names of versions that are not on the server yet."""

    before: Target | None
    after: Target | None
    names: Mapping[int, str]

    @property
    def words(self) -> str:
        after = self._meaning(self.after)
        return f"{self._meaning(self.before)} → {after}" if self.before else after

    def _meaning(self, target: Target | None) -> str:
        return "nothing" if target is None else meaning(rollout_of(target), target.version, self._label)

    def _label(self, number: int) -> str:
        """The number of a version on the server, or the name of one that is not there yet."""
        return f"new {self.names[number]}" if number in self.names else str(number)


def _move(task: str, alias: str, wanted: Meaning | None, sides: _Sides, tag: int | str | None) -> Step:
    sign = "-" if sides.after is None else "+" if sides.before is None else "~"

    def run(client: Client, numbers: Numbers) -> None:
        if wanted is not None:
            target = wanted.target(numbers)
            client.move_alias(task, alias, rollout_of(target) or target.version, tag)
        elif tag is not None:
            client.delete_alias(task, alias, tag)

    return Step(task, Phase.MOVE, sign, alias, sides.words, run)


def _set(task: str, part: Part, wanted: Any, present: Any, manifest: Callable[[], Manifest]) -> list[Step]:
    if wanted is None:
        change, sign = part.removal(task, present) if present is not None else None, "-"
    else:
        change, sign = part.change(task, wanted, present, manifest), "+" if present is None else "~"
    phase = Phase.BEFORE_MOVES if part.before_moves else Phase.AFTER_MOVES
    return [Step(task, phase, sign, part.title, change.words, lambda client, _: change.run(client))] if change else []
