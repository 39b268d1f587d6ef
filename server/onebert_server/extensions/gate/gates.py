"""Runs the gates of tasks: the candidate and the live version answer the pinned rows before an alias moves."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from onebert_encoder.answering.stretches import answer_labels
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.answers import Answerer
from onebert_server.contract.status import GateInForce
from onebert_server.extensions.gate import documents, judge
from onebert_server.extensions.gate.answers import RowAnswers, ref_of
from onebert_server.extensions.gate.documents import StoredGate
from onebert_server.extensions.gate.report import Report, Side, Wrong
from onebert_server.extensions.gate.rules import Gate, PinnedRow, pin
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_server.versions.moves import Allowed, RequestedMove, unchecked
from onebert_server.versions.version import Version
from onebert_store import errors
from onebert_store.comparison import ShortAnswer, answer_from
from onebert_store.errors import AliasConflict, DeadlineExceeded, GateFailed, GateNotFound
from onebert_store.file.fingerprint import overlap_of
from onebert_store.registry.names import LIVE
from onebert_store.registry.records import Actor, Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.target import Precondition

Announce = Callable[[str, Mapping[str, Any]], None]
# Changes in the audit trail.
_SET, _DELETE = "set-gate", "delete-gate"
# Aliases whose last refusal is remembered; moves among which a later one of an alias is looked for.
MAX_REFUSED = 1024
_MOVES = 64


class Refusal(NamedTuple):
    """Why a gate, by its document, refused to move an alias, and the last change of the registry that it knew."""

    detail: str
    document: str
    seq: int


class Gates:
    """Sets, reads and runs gates; every method but `before_move` blocks.

    Args:
        registrars: threads for the registry.
        registry: has the gates among its documents.
        announce: gets a `gate.failed` for each version that does not pass.
    """

    def __init__(
        self, catalog: Catalog, registry: Registry, answerer: Answerer, registrars: Executor, announce: Announce
    ) -> None:
        self._catalog = catalog
        self._documents = registry.documents
        self._feed = registry.feed
        self._directory = catalog.directory
        self._answers = RowAnswers(answerer)
        # The moves of one alias are judged one after the other: one of many with the same condition is made.
        self._locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]()
        self._registrars = registrars
        self._announce = announce
        # By task and alias, the last judged move, if it was refused.
        self._refused = dict[tuple[str, str], Refusal]()

    def read(self, task: str, context: Context) -> StoredGate | None:
        """Returns the gate of a task, if it has one; raises Forbidden, TaskNotFound, or StoreCorrupt."""
        self._require(task, context)
        return documents.read(self._documents, task)

    def counted(self, task: str, context: Context) -> GateInForce | None:
        """Returns the numbers of a gate's rows and checks, if the task has one; raises like `read`."""
        stored = self.read(task, context)
        return stored and stored.counted

    def set(self, task: str, gate: Gate, rows: Sequence[PinnedRow], context: Context) -> tuple[StoredGate, int]:
        """Sets the gate of a task; returns it, with the rows pinned, and the number of the change.

        Raises:
            Forbidden, TaskNotFound: see `Principal.require`.
            InvalidInput: tasks of this type have no such checks, or the rows are not the pinned ones.
        """
        self._require(task, context)
        [version] = self._directory.task(task, limit=1, who=context.principal).versions.values()
        self._catalog.manifests.learn(version)
        if version.known_facts is None:
            raise errors.VersionUnavailable(f"the manifest of {ref_of(version)} cannot be read")
        gate.check_type(version.facts.task_type)
        gate.check_rows(rows, version.facts.task_type)
        gate = pin(gate, rows)
        content = documents.written(gate, rows)
        seq = self._catalog.change(self._documents.write, context, task, documents.NAME, content, _SET)
        for alias in gate.aliases:
            self._refused.pop((task, alias), None)
        return StoredGate(gate, rows, content), seq

    def refusals(self, task: str, stored: StoredGate) -> dict[str, str]:
        """Returns why the gate refused the last move of each alias, unless one was made since, such as a forced one."""
        of_aliases = {alias: self._refused.get((task, alias)) for alias in stored.gate.aliases}
        refused = {alias: last for alias, last in of_aliases.items() if last and last.document == stored.document}
        made = {move.alias: move.seq for move in reversed(self._feed.moves(task, _MOVES))} if refused else {}
        return {alias: last.detail for alias, last in refused.items() if made.get(alias, 0) <= last.seq}

    def delete(self, task: str, context: Context) -> int:
        """Deletes the gate of a task; raises Forbidden, TaskNotFound, GateNotFound."""
        context.principal.require(Action.PROMOTE, task)
        return self._catalog.change(self._delete_document, context, task)

    def tasks(self) -> AbstractSet[str]:
        """Returns the names of the tasks that have a gate."""
        return self._documents.tasks(documents.NAME)

    async def before_move(self, move: RequestedMove, context: Context) -> Allowed:
        """The hook: raises GateFailed unless versions that do not answer yet may; the check has read the gate.

        A version that answered earlier, and is older, needs no gate: the alias goes back.

        Raises:
            AliasConflict: the alias's tag is not the expected one.
            OneBertError: a version could not answer; see `RowAnswers.ask`.
        """
        task, alias = move.task, move.alias
        stored = await run_in(self._registrars, self.read, task, context)
        read = Precondition(documents.NAME, stored and stored.document, {})
        if stored is None or alias not in stored.gate.aliases:
            return Allowed(read)
        new, live = self._place(move, context)
        if not new:
            return Allowed(read)
        lock = self._locks.setdefault((task, alias), asyncio.Lock())
        try:
            await asyncio.wait_for(lock.acquire(), context.remaining)
        except TimeoutError:
            raise DeadlineExceeded(f"other moves of {task}@{alias} were judged all this time") from None
        try:
            seq = self._directory.position.seq
            # The move before may have won.
            new, live = self._place(move, context)
            reports = await self._judge(stored, move, new, live, context)
            self._refused.pop((task, alias), None)
        except GateFailed as error:
            self._refused[task, alias] = Refusal(error.detail, stored.document, seq)
            if len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
            raise
        finally:
            lock.release()
        tags = {} if alias == LIVE else {LIVE: live.target.tag if live else None}
        return Allowed(read._replace(tags=tags), reports)

    def _place(self, move: RequestedMove, context: Context) -> tuple[list[int], Alias | None]:
        """Returns the versions that need the gate, and the alias `live`; raises AliasConflict."""
        entry = self._directory.task(move.task, limit=0, who=context.principal)
        at, live = entry.aliases.get(move.alias), entry.aliases.get(LIVE)
        if (at and at.target.tag) != move.expected:
            where = f"at version {at.target.tag}" if at else "not set"
            raise AliasConflict(f"the alias {move.alias} of {move.task} is {where}")
        return unchecked(move.target, at), live

    async def _judge(
        self, stored: StoredGate, move: RequestedMove, new: Sequence[int], live: Alias | None, context: Context
    ) -> list[Mapping[str, Any]]:
        """Returns the reports of the versions, which all pass; the right to move the alias is enough.

        Raises GateFailed for the first version that does not pass.
        """
        gate, task, who = stored.gate, move.task, context.principal
        several = len(self._directory.task(task, limit=2, who=who).versions) > 1
        if live is None and gate.compares and several:
            raise GateFailed(
                f"{task} has no live version to compare with: force the move, and say why",
                failed=["no live version to compare with"],
            )
        if gate.needs_rows and not stored.rows:
            raise GateFailed(
                f"the gate of {task} has no rows: set it again with rows, or force the move, and say why",
                failed=["the gate has no rows"],
            )
        candidates = [self._directory.version(task, number, who) for number in new]
        now = self._directory.version(task, live.version, who) if live else None
        for candidate in candidates:
            gate.check_type(candidate.facts.task_type)
        compared = [now] if now and gate.compares else []
        # Next to each other, the questions about one text share its computation.
        sides = [*candidates, *compared]
        questions = [(f"row {n}", side, row.input) for n, row in enumerate(stored.rows, 1) for side in sides]
        of_rows = len(questions)
        questions += [
            (f"must {n}", side, example.input) for n, example in enumerate(gate.must, 1) for side in candidates
        ]
        answers, reasons = await self._answers.ask([question[1:] for question in questions], context)
        overlaps = await run_in(self._registrars, self._overlaps, candidates, [row.input for row in stored.rows])
        reports = list[Mapping[str, Any]]()
        by_side = [answers[at : of_rows : len(sides)] for at in range(len(sides))]
        for at, candidate in enumerate(candidates):
            of_must = answers[of_rows + at :: len(candidates)]
            report = _report(
                stored, candidate, now, (by_side[at], by_side[-1] if compared else None, of_must), overlaps[at]
            )
            reports.append(report.model_dump(mode="json"))
            if report.failed:
                checks = [check.model_dump(exclude={"passed"}) for check in report.checks if not check.passed]
                data = {"task": task, "alias": move.alias, "candidate": candidate.entry.version, "checks": checks}
                self._announce("gate.failed", data)
                texts = [f"{questions[n][0]}: {why}" for n, why in reasons.items() if questions[n][1] is candidate]
                failed = [*report.failed, *texts[:3]]
                detail = f"{ref_of(candidate)} does not pass its gate: {'; '.join(failed)}"
                raise GateFailed(detail, reports[-1], failed)
        return reports

    def _overlaps(self, versions: Sequence[Version], texts: Sequence[Any]) -> list[int]:
        return [overlap_of(self._catalog.manifests.read(version.entry), texts).rows for version in versions]

    def _require(self, task: str, context: Context) -> None:
        """A key that may not move aliases does not see the gate."""
        context.principal.require(Action.PROMOTE, task)
        self._directory.task(task, limit=0, who=context.principal)

    def _delete_document(self, task: str, by: Actor) -> int:
        seq = self._documents.delete(task, documents.NAME, _DELETE, by)
        if seq is None:
            raise no_gate(task)
        return seq


def no_gate(task: str) -> GateNotFound:
    """Makes the error for a task without a gate."""
    return GateNotFound(f"{task} has no gate")


Answers = tuple[Sequence[ShortAnswer], Sequence[ShortAnswer] | None, Sequence[ShortAnswer]]
"""A candidate's answers to the rows, those of the live version if it is compared, and the candidate's to `must`."""


def _report(stored: StoredGate, candidate: Version, live: Version | None, answers: Answers, overlap: int) -> Report:
    of_candidate, of_live, of_must = answers
    gate, rows = stored.gate, stored.rows
    numbers, worst, must = None, list[Wrong](), judge.missed(gate, of_must)
    if rows:
        right, slices = [answer_from(row.label) for row in rows], [row.slices for row in rows]
        known = frozenset(answer_labels(live.facts)) if live else None
        judged = judge.JudgedRows(right, of_candidate, of_live, slices, known)
        numbers = judge.measure(gate, judged).model_copy(update={"trained_on": overlap})
        worst = judge.wrong_rows(judged)
    return Report(
        task=candidate.entry.task,
        candidate=_side(candidate),
        live=_side(live) if live else None,
        rules=gate.digest,
        rows=gate.pinned,
        numbers=numbers,
        must=must,
        worst=worst,
        checks=judge.checks_of(gate, numbers, len(must)),
    )


def _side(version: Version) -> Side:
    return Side(version=version.entry.version, digest=version.entry.digest)
