"""The difference between a file and a server: the steps that make them equal, in an order in which each is safe."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from onebert_server.cli.apply.form import AliasForm, Part, TaskForm, VersionForm
from onebert_server.cli.moving import saying_where
from onebert_server.client import Client, TaskStatus, TaskSummary
from onebert_server.contract.moves import meaning
from onebert_server.http.schemas.tasks import rollout_of
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE

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


class Known(NamedTuple):
    """What the server's lists say of a task: its summary and status, None without it, and its versions by digest."""

    summary: TaskSummary | None
    status: TaskStatus | None
    versions: Mapping[str, int]


class Difference(NamedTuple):
    """The steps of one task, as the file orders them."""

    steps: list[Step]
    numbers: Numbers


def difference(
    client: Client,
    name: str,
    form: TaskForm,
    known: Known,
    parts: Sequence[Part],
    bases: Mapping[str, str],
    message: str | None,
) -> Difference:
    """Compares one task; raises InvalidInput with a line for each key that this server cannot fulfil.

    Args:
        bases: names of the server's bases by digest.
        message: why aliases move, for the audit trail.
    """
    facts, status, there = known
    new = [each for each, version in form.versions.items() if version.digest not in there]
    # The server counts in the order of the pushes.
    likely = {each: number for number, each in enumerate(new, max(there.values(), default=0) + 1)}
    numbers = likely | {each: there[version.digest] for each, version in form.versions.items() if each not in likely}
    mistakes, steps = list[str](), list[Step]()

    def add(make: Callable[[], list[Step]]) -> None:
        try:
            steps.extend(make())
        except InvalidInput as error:
            mistakes.append(error.detail)

    for each in new:
        add(partial(_push, name, each, form.versions[each], bases))
    # As after a single push, the first version of a task is live, also if an earlier walk ended before its move.
    first = (
        {} if (facts and facts.aliases) or not numbers else {LIVE: AliasForm(split={next(iter(form.versions)): 100})}
    )
    names = {number: f"new {each}" for each, number in likely.items()}
    present = {
        part.key: part.present(client, name) if facts and (status is None or part.may_be_of(status)) else None
        for part in parts
        if form.aliases or part.key in form.parts
    }

    def decides(alias: str, fresh: Collection[int]) -> str:
        """The obstacles to a move to these versions, in words."""
        then = {key: None if form.parts.get(key, value) is None else value for key, value in present.items()}
        conditions = (part.of_move(alias, fresh, form.parts.get(part.key), then.get(part.key)) for part in parts)
        return ", ".join(filter(None, conditions))

    for alias, wanted in {**first, **form.aliases}.items():
        steps += _move(name, alias, wanted, facts, numbers, names, decides, message)
    manifest = partial(_last_manifest, client, name, form, known)
    for part in parts:
        if part.key in form.parts:
            add(partial(_set, name, part, form.parts[part.key], present[part.key], manifest))
    if mistakes:
        raise InvalidInput("\n".join(mistakes))
    return Difference(steps, numbers)


def _last_manifest(client: Client, task: str, form: TaskForm, known: Known) -> Manifest:
    last = [*form.versions.values()][-1] if form.versions else None
    if last is not None and last.manifest is not None:
        return last.manifest
    newest = max(known.summary.versions, default=0) if known.summary else 0
    number = known.versions[last.digest] if last else newest
    return parse_manifest(client.version(task, number).manifest)


def bases_of(client: Client) -> dict[str, str]:
    """The names of a server's bases by their digests."""
    facts = client.base()
    return {base.digest: base.name for base in facts.bases or [facts]}


def _push(task: str, name: str, version: VersionForm, bases: Mapping[str, str]) -> list[Step]:
    file = version.file
    if file is None:
        raise InvalidInput(
            f"tasks.{task}.versions.{name}: no version of {task} on this server has the digest {version.digest}, "
            "and no file is there"
        )
    if version.manifest is not None and version.manifest.base.digest not in bases:
        theirs, ours = version.manifest.base.name, ", ".join(bases.values())
        raise InvalidInput(
            f"tasks.{task}.versions.{name}: {file.name} was trained on {printable(theirs, 80)}, which this server does "
            f"not have; it has {printable(ours, 200)}"
        )

    def run(client: Client, numbers: Numbers) -> None:
        from onebert_store.file.format import load_with_bytes  # noqa: PLC0415

        # Read once more: the files of all tasks together may not fit into memory.
        delta, content = load_with_bytes(file)
        if delta.digest != version.digest:
            raise InvalidInput(f"{file.name} has changed since the difference was printed")
        numbers[name] = client.push(task, content, live=False).version

    words = f"{file.name} ({version.size:,} bytes, {version.digest[:19]}…)"
    return [Step(task, Phase.PUSH, "+", f"version {name}", words, run)]


def _move(
    task: str,
    alias: str,
    wanted: AliasForm | None,
    facts: TaskSummary | None,
    numbers: Numbers,
    names: Mapping[int, str],
    decides: Callable[[str, Collection[int]], str],
    message: str | None,
) -> list[Step]:
    number = facts.aliases.get(alias) if facts else None
    before = facts.targets.get(alias) if facts else None
    after = wanted.target(numbers) if wanted else None
    tag = None if number is None else str(before.tag if before else number)
    if tag == (after and after.tag):
        return []

    def run(client: Client, numbers: Numbers) -> None:
        if wanted is not None:
            target = wanted.target(numbers)
            with saying_where(client, task, alias, words[0]):
                client.move_alias(task, alias, rollout_of(target) or target.version, tag, message=message)
        elif tag is not None:
            with saying_where(client, task, alias, words[0]):
                client.delete_alias(task, alias, tag, message=message)

    words = [meaning(before, number)] if number else [""]
    if after is None:
        words.append("nothing")
    else:
        words.append(meaning(rollout_of(after), after.version, lambda each: names.get(each, str(each))))
    fresh = {version for version, _ in (after.shares if after else ())} - {
        *map(int, before.split if before else ()),
        number,
    }
    parts = filter(None, (" → ".join(filter(None, words)), decides(alias, fresh) if fresh else ""))
    return [Step(task, Phase.MOVE, _sign(number, after), alias, ", ".join(parts), run)]


def _set(task: str, part: Part, wanted: Any, present: Any, manifest: Callable[[], Manifest]) -> list[Step]:
    try:
        change = None if wanted is present is None else part.change(task, wanted, present, manifest)
    except OneBertError as error:
        raise InvalidInput(f"tasks.{task}.{part.key}: {error.detail}") from None
    if change is None:
        return []
    phase = Phase.BEFORE_MOVES if part.before_moves else Phase.AFTER_MOVES
    sign = _sign(present, wanted)
    return [Step(task, phase, sign, part.title, change.words, lambda client, _: change.run(client))]


def _sign(before: object, after: object) -> str:
    return "-" if after is None else "+" if before is None else "~"
