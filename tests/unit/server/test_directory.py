"""The directory: pinned versions stay, slots go once, cold versions are loaded once, names resolve at one moment."""

import re
from collections import Counter
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from directories import SlotHost, publish, retire
from lengths import examples
from onebert_server.access.principal import Principal, Scope, root
from onebert_server.versions.choice import at_random
from onebert_server.versions.directory import Directory
from onebert_server.versions.version import State, Version
from onebert_store.errors import AliasNotFound, InvalidInput, TaskNotFound, VersionNotFound, VersionUnavailable
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.records import Alias, VersionEntry, VersionRecord
from onebert_store.registry.target import Shadow, Target
from tiny_delta import manifest_dict

MANIFEST = parse_manifest(manifest_dict())
ASKS = root("a principal")


class Tried(Directory):
    """A directory that keeps what it frees and asks for; by default all that is added is `live` at version 1."""

    def __init__(self):
        self.host, self.asked, self.now = SlotHost(), [], 0.0
        self.freed = self.host.freed
        super().__init__([self.host], lambda version, _: self.asked.append(version), lambda: self.now)

    def add(self, task, number=1, slot=None, known=True, version=Version, **aliases):
        record = record_of(task, number)
        if not known:
            record = VersionEntry(task, number, record.digest, record.size, record.created_at)
        made = version(record, slot and self.host.slot(slot))
        publish(self, made, **(aliases or {"live": 1}))
        return made

    def add_broken(self, task, number=1, next_try=None):
        version = self.add(task, number)
        self.begin_loading(version)
        self.failed(version, "its file is damaged", next_try)
        return version

    def ask(self, *refs):
        return self.pin(refs, ASKS)

    def evicted(self):
        """The number of the slot that is evicted."""
        slot = self.evict()
        return slot and slot.number

    def live(self, wanted=lambda _: True, most=9, who=ASKS):
        """The names of the live tasks."""
        return [meaning.versions[0].facts.task for meaning in self.live_meanings(wanted, most, who)]


def record_of(task, number):
    return VersionRecord(task, number, f"sha256:{number:064x}", 1, datetime(2026, 1, 1, tzinfo=UTC), MANIFEST)


@pytest.fixture
def directory():
    return Tried()


@pytest.fixture
def filled(directory):
    directory.add("a", 1, slot=1)
    directory.add("a", 2, slot=2, live=1, next=2)
    directory.add_broken("broken", 1)
    directory.add("broken", 2, slot=3)
    return directory


def test_references(filled):
    slots = [version.slot.number for version in filled.ask("a", "a@live", "a@next", "a@2", "broken@2", "a")]
    assert slots == [1, 1, 2, 2, 3, 1]


@pytest.mark.parametrize(
    ("ref", "error"),
    [
        ("b", TaskNotFound),
        ("a@3", VersionNotFound),
        ("a@other", AliasNotFound),
        ("broken", VersionUnavailable),
        ("A", InvalidInput),
    ],
)
def test_one_bad_reference_pins_nothing(filled, ref, error):
    with pytest.raises(error):
        filled.ask("a", ref)
    retire(filled, "a", 1)
    assert filled.freed == [1]


@pytest.mark.parametrize("asked", ["sever", "sevveral", "seveal", "sevreal", "xseveral", "sevexal", "sevexxal"])
def test_a_mistyped_task_is_refused_with_what_may_be_meant(asked, directory):
    directory.add("several")
    near = "" if asked in ("sever", "sevexxal") else "; is several meant?"
    with pytest.raises(TaskNotFound, match=f"^there is no task {asked}{re.escape(near)}$"):
        directory.ask(asked)


def test_nobody_is_told_of_a_task_of_others(directory):
    """Their task and one that is nobody's get the same answer, whatever is there."""
    directory.add("ours")
    directory.add("oours")
    who = Principal("key:who", frozenset(Scope), ("ours",))
    for asked in ("oours", "ourss"):
        with pytest.raises(TaskNotFound, match=f"there is no task {asked}; is ours meant") as pinning:
            directory.pin([asked], who)
        with pytest.raises(TaskNotFound) as seeing:
            directory.task(asked, who=who)
        assert pinning.value.detail == seeing.value.detail
    with pytest.raises(TaskNotFound, match=r"^there is no task oours$"):
        directory.pin(["oours"], Principal("key:none", frozenset(Scope), ()))


def test_what_looks_like_a_version_among_aliases_is_said_to_be_one(directory):
    directory.add("several", 2, live=2)
    with pytest.raises(AliasNotFound, match=r"^several has no alias v2; version 2 is several@2$"):
        directory.ask("several@v2")
    for alias in ("v3", "next"):
        with pytest.raises(AliasNotFound, match=f"^several has no alias {alias}$"):
            directory.ask(f"several@{alias}")


def test_live_leaves_out_what_cannot_answer(filled):
    unknown = filled.add("unknown", known=False)
    filled.begin_loading(unknown)
    assert filled.live() == ["a"]
    filled.unloaded(unknown, VersionUnavailable("no room"))
    assert filled.live() == ["a"]


def test_unknown_live_tasks_count_for_the_bound(directory):
    for number in range(4):
        directory.add(f"task-{number}", known=False)
    assert directory.live(most=4) == []
    with pytest.raises(InvalidInput, match="more than 3 tasks"):
        directory.live(most=3)


def test_facts_of_live_tasks_are_there_without_loading_them(filled):
    filled.add("b")
    facts = filled.live_facts(lambda _: True, 2, ASKS, at_random)
    assert [(each.task, each.version) for each in facts] == [("a", 1), ("b", 1)]
    assert filled.asked == []
    with pytest.raises(InvalidInput, match="more than 1 tasks"):
        filled.live_facts(lambda _: True, 1, ASKS, at_random)


BEGINNINGS = st.text("ab-", max_size=3)
GLOBS = st.lists(st.text("ab-*", min_size=1, max_size=4), max_size=4).map(tuple)
NAMES = st.sets(st.text("ab-", min_size=1, max_size=4))


@given(names=NAMES, globs=GLOBS, after=BEGINNINGS, prefix=BEGINNINGS)
def test_a_principal_lists_and_asks_all_of_its_own_tasks_by_name(names, globs, after, prefix):
    directory = Tried()
    for name in names:
        directory.add(name)
    who = Principal("someone", frozenset(Scope), globs)
    allowed = sorted(name for name in names if any(fnmatchcase(name, glob) for glob in globs))
    assert directory.live(most=999, who=who) == allowed
    page = [name for name in allowed if name > after and name.startswith(prefix)]
    assert [task.name for task in directory.tasks(after, 2, prefix, who)] == page[:2]


def test_a_list_looks_at_no_other_tenants_tasks(directory, monkeypatch):
    """Of ten tasks as few as of a hundred thousand, which would keep everybody waiting: one lock holds them."""
    for number in range(1, 11):
        directory.add(f"{'acme' if number > 7 else 'blue'}-{number}")
    looked_at, sees = [], Principal.sees
    monkeypatch.setattr(Principal, "sees", lambda self, task: looked_at.append(task) or sees(self, task))
    who = Principal("someone", frozenset(Scope), ("acme-*", "acme-8*", "acm0-*"))
    assert len(directory.live(who=who)) == 3
    assert len(directory.tasks("acme-8", 9, "a", who)) == 1
    assert {task.partition("-")[0] for task in looked_at} == {"acme"}


def test_nobody_waits_for_a_shadow(filled):
    filled.show("a", (), {"live": Alias(Target(((1, 100),), None, (Shadow(2, 100),)))}, ())

    def numbers():
        [meaning] = filled.meanings(["a"], ASKS)
        return [version.entry.version for version in meaning.versions]

    assert numbers() == [1, 2]
    filled.unpin(filled.ask("broken@2", "a"))
    assert filled.evicted() == 2, "a shadow was not used"
    assert numbers() == [1], "nobody waits for it"
    shadow = filled.version("a", 2)
    assert (shadow.state, shadow.spare, shadow.pins, shadow.missed) == (State.LOADING, True, 0, {1: 1})
    assert filled.give_up_unwanted(shadow), "it is loaded only for room that nobody else needs"
    assert numbers() == [1]
    assert (shadow.state, shadow.missed) == (State.EVICTED, {1: 2}), "and not with each request"
    assert filled.version("a", 1).pins == 0


def test_the_refusal_says_why_and_when_to_come_back(directory):
    directory.now = 100.0
    directory.add_broken("task", next_try=107.5)
    with pytest.raises(VersionUnavailable, match="its file is damaged") as refused:
        directory.ask("task")
    assert refused.value.retry_after == 8


def test_what_is_tried_again_is_wanted(directory):
    broken = [directory.add_broken(f"broken{at}", next_try=at) for at in (1.0, 2.0, None)]
    directory.try_again()
    assert directory.asked == []
    directory.now = 1.0
    directory.try_again()
    directory.try_again()
    assert directory.asked == broken[:1]
    assert not directory.give_up_unwanted(broken[0])


def test_what_was_tried_again_is_no_longer_unavailable(directory):
    """It is no longer unavailable for a reason of before, and is given up when who asked for it has left."""
    version = directory.add_broken("task", next_try=1.0)
    directory.now = 1.0
    directory.try_again()
    directory.unloaded(version, VersionUnavailable("no room"))
    assert (version.state, version.reason, version.next_try) == (State.REGISTERED, None, None)
    directory.unpin(directory.ask("task"))
    assert directory.give_up_unwanted(version)


def test_the_least_recently_used_goes_first(directory):
    for number in (1, 2, 3):
        directory.add("task", number, slot=number)
    directory.unpin(directory.ask("task@1"))
    assert [directory.evicted(), directory.evicted()] == [2, 3]
    [back] = directory.ask("task@3")
    assert directory.asked == [back]
    assert back.state is State.LOADING


class Residency(RuleBasedStateMachine):
    """Random pins, loads, failures, evictions and retirements against a count of who holds which slot."""

    pins = Bundle("pins")

    def __init__(self):
        super().__init__()
        self.directory = Tried()
        self.directory._load = self.ask
        self.asked, self.held, self.present = [], Counter(), {}
        self.late = []  # retired while they were loaded
        self.published = self.slots = 0
        self.owned = {}  # slot -> version, as long as the directory has it

    def ask(self, version, principal):
        if version not in self.asked:
            self.asked.append(version)

    def any_version(self, data):
        return self.present[data.draw(st.sampled_from(sorted(self.present)))]

    @rule(resident=st.booleans())
    def publish(self, resident):
        self.published += 1
        self.slots += resident
        slot = self.slots if resident else None
        version = self.directory.add("task", self.published, slot, live=self.published)
        self.present[self.published] = version
        if resident:
            self.owned[slot] = version

    @precondition(lambda self: self.present)
    @rule(target=pins, data=st.data())
    def pin(self, data):
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.present)), min_size=1, max_size=5))
        refs = [f"task@{number}" for number in numbers]
        if any(self.present[number].state is State.UNAVAILABLE for number in numbers):
            with pytest.raises(VersionUnavailable):
                self.directory.ask(*refs)
            return []
        versions = self.directory.ask(*refs)
        self.held.update(versions)
        return versions

    @rule(versions=consumes(pins))
    def unpin(self, versions):
        self.directory.unpin(versions)
        self.held.subtract(versions)

    @precondition(lambda self: self.asked or self.late)
    @rule(outcome=st.sampled_from(["loaded", "failed", "unloaded"]))
    def load(self, outcome):
        version = (self.late or self.asked).pop(0)
        if outcome == "loaded":
            self.slots += 1
            self.owned[self.slots] = version
            slot = self.directory.host.slot(self.slots)
            self.directory.loaded(version, slot, record_of("task", version.entry.version))
        elif outcome == "failed":
            self.directory.failed(version, "for a test", self.directory.now + 2.0)
        else:
            self.directory.unloaded(version, VersionUnavailable("no room"))

    @rule()
    def evict(self):
        slot = self.directory.evicted()
        free = [version for version in self.owned.values() if not self.held[version] and not version.retired]
        assert (slot is None) == (not free)
        if slot is not None:
            assert self.held[self.owned.pop(slot)] == 0

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def try_again(self, data):
        version = self.any_version(data)
        if self.directory.begin_loading(version):
            self.asked.append(version)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def retire(self, data):
        version = self.any_version(data)
        loading = version.loading
        retire(self.directory, "task", version.entry.version)
        del self.present[version.entry.version]
        if version in self.asked:
            self.asked.remove(version)
            self.late.append(version)
            assert loading.done()

    @rule()
    def time_passes(self):
        self.directory.now += 1.0
        self.directory.try_again()

    @precondition(lambda self: self.asked)
    @rule()
    def give_up(self):
        version = self.asked[0]
        if self.directory.give_up_unwanted(version):
            assert self.held[version] == 0
            self.asked.remove(version)

    @invariant()
    def slots_go_once_when_nobody_can_use_them(self):
        gone = {slot for slot, version in self.owned.items() if version.retired}
        assert Counter(self.directory.freed) == Counter(gone)

    @invariant()
    def nobody_is_asked_to_load_twice(self):
        assert len(set(self.asked)) == len(self.asked)
        assert all(version.state is State.LOADING for version in self.asked)

    @invariant()
    def counts_are_those_of_a_walk_over_everything(self):
        versions = self.present.values()
        assert self.directory.counts() == {
            "tasks": 1 if versions else 0,
            "versions": len(versions),
            "resident": sum(version.state is State.RESIDENT for version in versions),
            "unavailable": sum(version.state is State.UNAVAILABLE for version in versions),
        }

    @invariant()
    def who_holds_a_resident_version_can_name_its_slot(self):
        for version, count in self.held.items():
            if count and version.state is State.RESIDENT:
                assert self.owned[version.slot.number] is version


Residency.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestResidency = Residency.TestCase
