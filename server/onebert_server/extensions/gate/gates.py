"""Runs the gates of tasks: the candidate and the live version answer the pinned rows before an alias moves."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from typing import Any, NamedTuple

from pydantic import ValidationError

from onebert_encoder.answering.results import Prediction, ShortAnswer, answer_of
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.answers import Answered, Answerer
from onebert_server.answering.many import GO_ON, ask_many
from onebert_server.extensions.gate.judge import Rows, measure, missed, right_of, verdict, wrong_rows
from onebert_server.extensions.gate.report import Report, Side, Wrong
from onebert_server.extensions.gate.rules import Gate, PinnedRow, pin
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_server.versions.moves import Move
from onebert_server.versions.version import Version
from onebert_store.errors import AliasConflict, GateFailed, GateNotFound, InvalidInput, StoreCorrupt, VersionUnavailable
from onebert_store.file import strict_json
from onebert_store.file.fields import Strict
from onebert_store.registry.documents import Documents
from onebert_store.registry.names import LIVE
from onebert_store.registry.records import Actor, Alias
from onebert_store.registry.target import Target

Announce = Callable[[str, Mapping[str, Any]], None]
# The name of a task's document, and its changes in the audit trail.
_NAME, _SET, _DELETE = "gate", "set-gate", "delete-gate"


class StoredGate(NamedTuple):
    """A gate of the registry, and its pinned rows. Stores of earlier releases hold gates without the rows they need."""

    gate: Gate
    rows: Sequence[PinnedRow]


class _Document(Strict):
    """A gate in the registry."""

    rules: Gate
    rows: list[PinnedRow] | None = None


class Gates:
    """Sets, reads and runs gates.

    Args:
        registrars: threads for the registry.
        documents: those of the registry, where the gates are.
        announce: gets a `gate.failed` for each version that does not pass.
    """

    def __init__(
        self, catalog: Catalog, documents: Documents, answerer: Answerer, registrars: Executor, announce: Announce
    ) -> None:
        self._catalog = catalog
        self._documents = documents
        self._directory = catalog.directory
        self._answerer = answerer
        self._registrars = registrars
        self._announce = announce

    async def get(self, task: str, context: Context) -> StoredGate | None:
        """Returns the gate of a task, if it has one; raises Forbidden, TaskNotFound, or StoreCorrupt."""
        return await run_in(self._registrars, self._read, task, context)

    async def set(self, task: str, gate: Gate, rows: Sequence[PinnedRow], context: Context) -> tuple[StoredGate, int]:
        """Sets the gate of a task; returns it, with the rows pinned, and the number of the change.

        Raises:
            Forbidden, TaskNotFound: see `Principal.require`.
            InvalidInput: tasks of this type have no such checks, or the rows are not the pinned ones.
        """
        return await run_in(self._registrars, self._set, task, gate, rows, context)

    async def delete(self, task: str, context: Context) -> int:
        """Deletes the gate of a task; raises Forbidden, TaskNotFound, GateNotFound."""
        return await run_in(self._registrars, self._delete, task, context)

    def tasks(self) -> AbstractSet[str]:
        """Returns the names of the tasks that have a gate."""
        return self._documents.tasks(_NAME)

    async def before_move(self, move: Move, context: Context) -> bool:
        """The hook: raises GateFailed unless versions that do not answer yet may; returns whether there is a gate.

        A version that answered before the alias's last move, and is older, needs no gate: the alias goes back.

        Raises:
            AliasConflict: the alias's tag is not the expected one.
            OneBertError: a version could not answer; see `Answerer.answer`.
        """
        task, alias, target, expected = move
        stored = await self.get(task, context)
        if stored is None or alias not in stored.gate.aliases:
            return False
        entry = self._directory.task(task, limit=2, who=context.principal)
        at, live = entry.aliases.get(alias), entry.aliases.get(LIVE)
        if (at and at.target.tag) != expected:
            where = f"at version {at.target.tag}" if at else "not set"
            raise AliasConflict(f"the alias {alias} of {task} is {where}")
        now = None if live is None else self._directory.version(task, live.version, context.principal)
        new = _need_gate(target, at)
        if new and live is None and stored.gate.compares and len(entry.versions) > 1:
            raise GateFailed(f"{task} has no live version to compare with: force the move, and say why")
        if new and stored.gate.needs_rows and not stored.rows:
            raise GateFailed(f"the gate of {task} has no rows: set it again with rows, or force the move, and say why")
        candidates = [self._directory.version(task, number, context.principal) for number in new]
        for report in await self._reports(stored, candidates, now, context):
            if report.failed:
                number = report.candidate.version
                checks = [check.model_dump(exclude={"passed"}) for check in report.checks if not check.passed]
                self._announce("gate.failed", {"task": task, "alias": alias, "candidate": number, "checks": checks})
                detail = f"{task}@{number} does not pass its gate: {'; '.join(report.failed)}"
                raise GateFailed(detail, report.model_dump(mode="json"))
        return True

    async def _reports(
        self, stored: StoredGate, candidates: Sequence[Version], live: Version | None, context: Context
    ) -> list[Report]:
        """Judges each candidate; the caller's right to move the alias is enough."""
        gate, rows = stored
        for candidate in candidates:
            gate.check_type(candidate.facts.task_type)
        compared = [live] if candidates and live and gate.compares else []
        # Next to each other, the questions about one text share its computation.
        sides = [*candidates, *compared]
        questions = [(side, row.input) for row in rows for side in sides]
        of_rows = len(questions)
        questions += [(candidate, example.input) for example in gate.must for candidate in candidates]
        refs, texts = [_ref(side) for side, _ in questions], [text for _, text in questions]
        answers = await ask_many(self._answerer, context.of_own_questions, refs, texts, _answer, GO_ON)
        by_side = [answers[at : of_rows : len(sides)] for at in range(len(sides))]
        of_live = by_side[-1] if compared else None
        return [
            _report(stored, candidate, live, (by_side[at], of_live, answers[of_rows + at :: len(candidates)]))
            for at, candidate in enumerate(candidates)
        ]

    def _require(self, task: str, context: Context) -> None:
        """A key that may not move aliases does not see the gate."""
        context.principal.require(Action.PROMOTE, task)
        self._directory.task(task, limit=0, who=context.principal)

    def _read(self, task: str, context: Context) -> StoredGate | None:
        self._require(task, context)
        content = self._documents.read(task, _NAME)
        if content is None:
            return None
        try:
            document = _Document.model_validate_json(content)
            return StoredGate(document.rules, document.rows or ())
        except ValidationError:
            raise StoreCorrupt(f"the database holds a damaged gate of {task}") from None

    def _set(self, task: str, gate: Gate, rows: Sequence[PinnedRow], context: Context) -> tuple[StoredGate, int]:
        self._require(task, context)
        [version] = self._directory.task(task, limit=1, who=context.principal).versions.values()
        self._catalog.learn(version)
        if version.known_facts is None:
            raise VersionUnavailable(f"the manifest of {_ref(version)} cannot be read")
        gate.check_type(version.facts.task_type)
        gate.check_rows(rows, version.facts.task_type)
        gate = pin(gate, rows)
        content = strict_json.encode(_Document(rules=gate, rows=[*rows] or None).model_dump(exclude_defaults=True))
        return StoredGate(gate, rows), self._catalog.change(self._documents.write, context, task, _NAME, content, _SET)

    def _delete(self, task: str, context: Context) -> int:
        context.principal.require(Action.PROMOTE, task)
        return self._catalog.change(self._delete_document, context, task)

    def _delete_document(self, task: str, by: Actor) -> int:
        seq = self._documents.delete(task, _NAME, _DELETE, by)
        if seq is None:
            raise no_gate(task)
        return seq


def no_gate(task: str) -> GateNotFound:
    """Makes the error for a task without a gate."""
    return GateNotFound(f"{task} has no gate")


def _need_gate(target: Target, at: Alias | None) -> list[int]:
    """Returns the versions that shall answer and need the gate.

    Skips those that answer now, and those that answered before the last move and are older than the newest that does.
    """
    now = {version for version, _ in at.target.shares} if at else set[int]()
    before = {version for version, _ in at.before.shares} if at and at.before else set[int]()
    back = {version for version in before if version < max(now)}
    return [version for version, _ in target.shares if version not in now | back]


Answers = tuple[Sequence[ShortAnswer], Sequence[ShortAnswer] | None, Sequence[ShortAnswer]]
"""A candidate's answers to the rows, those of the live version if it is compared, and the candidate's to `must`."""


def _report(stored: StoredGate, candidate: Version, live: Version | None, answers: Answers) -> Report:
    gate, rows = stored
    of_candidate, of_live, of_must = answers
    numbers, worst, must = None, list[Wrong](), missed(gate, of_must)
    if rows:
        right, slices = [right_of(row.label) for row in rows], [row.slices for row in rows]
        judged = Rows(right, of_candidate, of_live, slices)
        numbers, worst = measure(gate, judged), wrong_rows(judged)
    return Report(
        task=candidate.entry.task,
        candidate=_side(candidate),
        live=_side(live) if live else None,
        rules=gate.digest,
        rows=gate.pinned,
        numbers=numbers,
        must=must,
        worst=worst,
        checks=verdict(gate, numbers, len(must)),
    )


def _answer(_: int, answered: Answered) -> ShortAnswer:
    answer, facts = answered.read().answer, answered.facts
    if not isinstance(answer, Prediction):
        raise InvalidInput(f"{facts.ref} is a {facts.task_type} task, which has no gate")
    return answer_of(facts.task_type, answer)


def _ref(version: Version) -> str:
    return f"{version.entry.task}@{version.entry.version}"


def _side(version: Version) -> Side:
    return Side(version=version.entry.version, digest=version.entry.digest)
