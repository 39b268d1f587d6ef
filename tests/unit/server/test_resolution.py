"""What an edge remembers of references: it is used as long as it is right, and refused from the change that ends it."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from directories import SlotHost
from lengths import examples
from onebert_server.access.context import Context
from onebert_server.access.principal import Principal, Scope, root
from onebert_server.answering.gateway import Resolutions, Resolved
from onebert_server.versions.directory import Directory
from onebert_server.versions.version import Version
from onebert_store.errors import NotFound
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.records import Alias, VersionRecord
from onebert_store.registry.target import Shadow, Target, alone
from tiny_delta import manifest_dict

MANIFEST = parse_manifest(manifest_dict())
ASKS = root("a principal")
KEEPING = Keeping(0.5, 7, 100)


def context(who=ASKS, min_seq=0):
    return Context(who, inf, 0.0, "an-id", min_seq)


def record_of(task, number):
    return VersionRecord(task, number, f"sha256:{number:064x}", 1, datetime(2026, 1, 1, tzinfo=UTC), MANIFEST)


class Registered:
    """A directory of tasks in memory, changed as the follower does, and an edge that remembers."""

    def __init__(self):
        self.host, self.slots = SlotHost(), 0
        self.directory = Directory([self.host], lambda *_: None, lambda: 0.0)
        self.edge = Resolutions()
        self.aliases = {}

    def slot(self):
        self.slots += 1
        return self.host.slot(self.slots)

    def add(self, task, number, **aliases):
        version = Version(record_of(task, number), self.slot())
        self.move(task, [version], **aliases)
        return version

    def move(self, task, versions=(), gone=(), **aliases):
        """Shows versions of a task, and where some of its aliases are from now on; None deletes one."""
        at = self.aliases.setdefault(task, {})
        for alias, target in aliases.items():
            if target is None:
                del at[alias]
            else:
                at[alias] = Alias(alone(target) if isinstance(target, int) else target)
        self.directory.show(task, versions, at, [*gone, *(version.entry.version for version in versions)])

    def resolve(self, ref):
        """Resolves as the engine's process does, and remembers it."""
        [meaning] = self.directory.meanings([ref], ASKS)
        slot, generation, facts = meaning.row
        resolved = Resolved(facts, 0, slot.number, generation, meaning.keeping, meaning.versions.lasting)
        self.edge.remember({ref: resolved})
        return resolved

    def held(self, resolved):
        """Whether the engine takes a sequence for this row."""
        slots = np.array([resolved.slot], np.int32)
        with self.host.using:
            return bool(self.host.hold(slots, np.array([resolved.generation]))[0])

    def let_go(self, resolved):
        with self.host.using:
            self.host.let_go(np.array([resolved.slot], np.int32))

    def answer(self, ref):
        """Answers as an edge does: by what it remembers, and anew if the engine refuses that."""
        cached = self.edge.find([ref], context())
        while True:
            resolved = cached[0] if cached else self.resolve(ref)
            if self.held(resolved):
                return resolved
            self.edge.forget([(ref, resolved)])
            cached = None


@pytest.fixture
def registered():
    made = Registered()
    made.add("tone", 1, live=1)
    made.add("tone", 2, next=2)
    made.add("mood", 1, live=1)
    return made


CHANGES = {
    "its alias moves": lambda registered: registered.move("tone", live=2),
    "its alias becomes a split": lambda registered: registered.move("tone", live=Target(((1, 90), (2, 10)))),
    "its alias gets a shadow": lambda registered: registered.move(
        "tone", live=Target(((1, 100),), None, (Shadow(2, 100),))
    ),
    "its alias is deleted": lambda registered: registered.move("tone", live=None),
    "its version is deleted": lambda registered: registered.move("tone", gone=[1], live=2),
    "its task is deleted": lambda registered: registered.directory.show("tone", (), {}),
    "its answers are kept": lambda registered: registered.directory.keep({"tone": KEEPING}),
    "its version is read anew": lambda registered: registered.move(
        "tone", [Version(record_of("tone", 1), registered.slot())]
    ),
}
OTHERS = {
    "a version is added": lambda registered: registered.add("tone", 3),
    "another alias moves": lambda registered: registered.move("tone", next=1),
    "another version is deleted": lambda registered: registered.move("tone", gone=[2], next=None),
    "another task is changed": lambda registered: (
        registered.add("mood", 2, live=2),
        registered.directory.keep({"mood": KEEPING}),
    ),
    "it is shown again": lambda registered: registered.move("tone"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_is_refused_once_a_change_is_shown(registered, change):
    remembered = registered.resolve("tone")
    assert registered.held(remembered)
    CHANGES[change](registered)
    assert not registered.held(remembered)
    assert remembered.slot not in registered.host.freed, "what was taken before is still answered"
    registered.let_go(remembered)
    gone = "deleted" in change or change in ("its task is replaced", "its version is read anew")
    assert (remembered.slot in registered.host.freed) == (gone and "alias" not in change)


def test_a_used_row_stays_and_an_evicted_one_is_refused(registered):
    remembered = registered.resolve("tone")
    assert registered.held(remembered)
    evicted = [registered.directory.evict() for _ in range(3)]
    assert [slot and slot.number for slot in evicted] == [2, 3, None]
    registered.let_go(remembered)
    assert registered.directory.evict().number == remembered.slot
    assert not registered.held(remembered)


@pytest.mark.parametrize("change", OTHERS)
def test_other_changes_leave_what_is_remembered(registered, change):
    remembered = registered.resolve("tone")
    OTHERS[change](registered)
    assert registered.held(remembered)


def test_a_version_is_remembered_by_each_of_its_references(registered):
    """A request for a version by its number goes on while an alias of it moves, at most with one more resolution."""
    by_number, by_alias = registered.resolve("tone@1"), registered.resolve("tone@live")
    registered.move("tone", live=2)
    assert not registered.held(by_alias)
    assert registered.answer("tone@1").facts.version == by_number.facts.version == 1
    assert registered.answer("tone@live").facts.version == 2


def test_an_edge_remembers_nothing_that_each_request_chooses_anew(registered):
    for target in (Target(((1, 50), (2, 50))), Target(((1, 100),), None, (Shadow(2, 1),))):
        registered.move("tone", live=target)
        assert not registered.resolve("tone").lasting
        assert registered.edge.find(["tone"], context()) is None
    assert registered.resolve("tone@1").lasting


def test_an_edge_remembers_nothing_for_whom_it_does_not_exist(registered):
    resolved = [registered.resolve(ref) for ref in ("tone", "mood")]
    some, none = (Principal("key:k", frozenset(Scope), globs) for globs in (("to*",), ()))
    assert registered.edge.find(["tone", "mood", "tone"], context()) == [*resolved, resolved[0]]
    assert registered.edge.find(["tone"], context(some)) == resolved[:1]
    assert registered.edge.find(["tone", "mood"], context(some)) is None
    assert registered.edge.find(["tone"], context(none)) is None
    assert registered.edge.find(["tone", "gone"], context()) is None


def test_what_must_include_a_change_is_resolved_anew(registered):
    registered.resolve("tone")
    assert registered.edge.find(["tone"], context(min_seq=1)) is None


def test_an_edge_remembers_within_its_bytes(registered):
    size = 2**12
    edge, resolved = Resolutions(3 * size), registered.resolve("tone")
    labels = [f"label {number}" for number in range(40)]
    resolved = Resolved(replace(resolved.facts, labels=labels), 0, 1, 1)
    edge.remember({"a": resolved})
    edge.remember({"b": resolved})
    assert edge.find(["a"], context()) == [resolved]
    edge.remember({"c": resolved, "d": resolved})
    # What another request has resolved anew meanwhile stays.
    edge.forget([("d", resolved._replace())])
    known = [ref for ref in "abcd" if edge.find([ref], context())]
    assert "d" in known
    assert "b" not in known
    edge.forget((ref, resolved) for ref in "abcd")
    edge.remember(dict.fromkeys("ab", resolved))
    assert edge.find(["a", "b"], context()) == [resolved] * 2, "what is forgotten takes no room"


class Remembering(RuleBasedStateMachine):
    """Tasks that change in every way while an edge asks: whatever is taken is what the reference means then."""

    def __init__(self):
        super().__init__()
        self.one, self.next = Registered(), 0
        self.means, self.keepings = {}, {}  # (task, alias) -> version; all versions of tasks below
        self.versions = {"a": {}, "b": {}}
        self.taken = Counter()
        self.owners = {}

    def task(self, data):
        return data.draw(st.sampled_from([name for name, versions in self.versions.items() if versions]))

    @rule(task=st.sampled_from("ab"), resident=st.booleans())
    def add(self, task, resident):
        self.next += 1
        version = Version(record_of(task, self.next), self.one.slot() if resident else None)
        self.versions[task][self.next] = version
        if resident:
            self.owners[version.slot.number] = version
        self.one.move(task, [version])

    @precondition(lambda self: any(self.versions.values()))
    @rule(data=st.data(), alias=st.sampled_from(["live", "next"]))
    def move(self, data, alias):
        task = self.task(data)
        number = data.draw(st.sampled_from(sorted(self.versions[task])))
        self.means[task, alias] = number
        self.one.move(task, **{alias: number})

    @precondition(lambda self: self.means)
    @rule(data=st.data())
    def delete_alias(self, data):
        task, alias = data.draw(st.sampled_from(sorted(self.means)))
        del self.means[task, alias]
        self.one.move(task, **{alias: None})

    @precondition(lambda self: any(self.versions.values()))
    @rule(data=st.data())
    def delete_version(self, data):
        task = self.task(data)
        number = data.draw(st.sampled_from(sorted(self.versions[task])))
        del self.versions[task][number]
        aliases = [alias for (of, alias), at in self.means.items() if (of, at) == (task, number)]
        for alias in aliases:
            del self.means[task, alias]
        self.one.move(task, gone=[number], **dict.fromkeys(aliases))

    @rule(task=st.sampled_from("ab"), keeps=st.booleans())
    def keep(self, task, keeps):
        self.keepings = {task: KEEPING} if keeps else {}
        self.one.directory.keep(self.keepings)

    @rule()
    def evict(self):
        slot = self.one.directory.evict()
        if slot is not None:
            assert not self.taken[slot.number]
            slot.release()

    @precondition(lambda self: any(self.versions.values()))
    @rule(data=st.data())
    def load(self, data):
        task = self.task(data)
        version = self.versions[task][data.draw(st.sampled_from(sorted(self.versions[task])))]
        if self.one.directory.begin_loading(version) or version.loading:
            slot = self.one.slot()
            self.owners[slot.number] = version
            self.one.directory.loaded(version, slot, record_of(task, version.entry.version))

    @rule(task=st.sampled_from("ab"), at=st.sampled_from(["live", "next", "number"]), data=st.data())
    def ask(self, task, at, data):
        number = self.means.get((task, at))
        if at == "number" and self.versions[task]:
            number = at = data.draw(st.sampled_from(sorted(self.versions[task])))
        ref = f"{task}@{1 if at == 'number' else at}"
        if number is None:
            remembered = self.one.edge.find([ref], context())
            assert not (remembered and self.one.held(remembered[0]))
            with pytest.raises(NotFound):
                self.one.directory.meanings([ref], ASKS)
            return
        if self.versions[task][number].held_slot is None:
            remembered = self.one.edge.find([ref], context())
            assert not (remembered and self.one.held(remembered[0]))
            return
        answered = self.one.answer(ref)
        self.taken[answered.slot] += 1
        assert (answered.facts.task, answered.facts.version) == (task, number)
        assert answered.keeping == self.keepings.get(task)
        assert self.owners[answered.slot] is self.versions[task][number]

    @precondition(lambda self: self.taken.total())
    @rule(data=st.data())
    def end(self, data):
        slot = data.draw(st.sampled_from(sorted(self.taken.elements())))
        self.taken[slot] -= 1
        with self.one.host.using:
            self.one.host.let_go(np.array([slot], np.int32))

    @invariant()
    def no_row_goes_while_it_is_used(self):
        assert not any(self.taken[slot] for slot in self.one.host.freed)
        assert len(set(self.one.host.freed)) == len(self.one.host.freed)


Remembering.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
TestRemembering = Remembering.TestCase
