"""The directory: pins hold slots, slots go exactly once, cold versions are loaded once, names resolve at one moment."""

import re
from collections import Counter
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from directories import publish, retire
from lengths import examples
from onebert_server.access.principal import Principal, Scope, root
from onebert_server.versions.directory import Directory
from onebert_server.versions.version import State, Version
from onebert_store.errors import AliasNotFound, InvalidInput, TaskNotFound, VersionNotFound, VersionUnavailable
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.records import Alias, VersionEntry, VersionRecord
from tiny_delta import manifest_dict

MANIFEST = parse_manifest(manifest_dict())
ASKS = root("a principal")


def _record(task, version):
    digest = f"sha256:{version:064x}"
    return VersionRecord(task, version, digest, 1, datetime(2026, 1, 1, tzinfo=UTC), MANIFEST)


def _resident(task, version, slot):
    return Version(_record(task, version), slot)


def _directory(released=None, asked=None, clock=lambda: 0.0):
    released, asked = ([] if given is None else given for given in (released, asked))
    return Directory(released.append, lambda version, _: asked.append(version), clock)


def _publish_broken(directory, task, number, **of_failure):
    version = Version(_record(task, number))
    publish(directory, version, {"live": Alias(1)})
    directory.begin_loading(version)
    directory.failed(version, "its file is damaged", **{"next_try": None} | of_failure)
    return version


@pytest.fixture
def directory():
    made = _directory()
    publish(made, _resident("a", 1, 1), {"live": Alias(1)})
    publish(made, _resident("a", 2, 2), {"live": Alias(1), "next": Alias(2)})
    _publish_broken(made, "broken", 1)
    publish(made, _resident("broken", 2, 3), {"live": Alias(1)})
    return made


def test_references(directory):
    refs = ["a", "a@live", "a@next", "a@2", "broken@2", "a"]
    assert [version.slot for version in directory.pin(refs, ASKS)] == [1, 1, 2, 2, 3, 1]


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
def test_one_bad_reference_pins_nothing(ref, error):
    released = []
    directory = _directory(released)
    publish(directory, _resident("a", 1, 1), {"live": Alias(1)})
    _publish_broken(directory, "broken", 1)
    with pytest.raises(error):
        directory.pin(["a", ref], ASKS)
    retire(directory, "a", 1)
    assert released == [1]


@pytest.mark.parametrize("asked", ["sever", "sevveral", "seveal", "sevreal", "xseveral", "sevexal", "sevexxal"])
def test_a_mistyped_task_is_refused_with_what_may_be_meant(asked, directory):
    publish(directory, _resident("several", 1, slot=9), {"live": Alias(1)})
    near = "" if asked in ("sever", "sevexxal") else "; is several meant?"
    with pytest.raises(TaskNotFound, match=f"^there is no task {asked}{re.escape(near)}$"):
        directory.pin([asked], ASKS)


def test_nobody_is_told_of_a_task_of_others(directory):
    """Their task and one that is nobody's get the same answer, whatever is there."""
    publish(directory, _resident("ours", 1, slot=9), {"live": Alias(1)})
    publish(directory, _resident("oours", 1, slot=10), {"live": Alias(1)})
    who = Principal("key:who", frozenset(Scope), ("ours",))
    for asked in ("oours", "ourss"):
        with pytest.raises(TaskNotFound, match=f"there is no task {asked}; is ours meant") as pinning:
            directory.pin([asked], who)
        with pytest.raises(TaskNotFound) as seeing:
            directory.require(asked, who)
        assert pinning.value.detail == seeing.value.detail
    with pytest.raises(TaskNotFound, match=r"^there is no task oours$"):
        directory.pin(["oours"], Principal("key:none", frozenset(Scope), ()))


def test_what_looks_like_a_version_among_aliases_is_said_to_be_one(directory):
    publish(directory, _resident("several", 2, slot=9), {"live": Alias(2)})
    with pytest.raises(AliasNotFound, match=r"^several has no alias v2; version 2 is several@2$"):
        directory.pin(["several@v2"], ASKS)
    for alias in ("v3", "next"):
        with pytest.raises(AliasNotFound, match=f"^several has no alias {alias}$"):
            directory.pin([f"several@{alias}"], ASKS)


def test_live_leaves_out_what_nobody_knows_yet(directory):
    record = _record("unknown", 1)
    entry = VersionEntry(record.task, record.version, record.digest, record.size, record.created_at)
    unknown = Version(entry)
    publish(directory, unknown, {"live": Alias(1)})
    directory.begin_loading(unknown)
    assert [version.facts.task for version in directory.pin_live(lambda _: True, most=9, principal=ASKS)] == ["a"]
    directory.unloaded(unknown, VersionUnavailable("no room"))
    assert [version.facts.task for version in directory.pin_live(lambda _: True, most=9, principal=ASKS)] == ["a"]


def test_only_what_nobody_wants_any_more_is_given_up():
    asked = []
    directory = _directory(asked=asked)
    version = Version(_record("task", 1))
    publish(directory, version, {"live": Alias(1)})
    pinned = directory.pin(["task"], ASKS)
    assert not directory.give_up_unwanted(version)
    directory.unpin(pinned)
    assert directory.give_up_unwanted(version)
    assert version.state is State.REGISTERED
    directory.pin(["task"], ASKS)
    assert asked == [version, version]


def test_what_the_server_tries_again_is_wanted_although_nobody_has_asked_for_it():
    asked, now = [], 0.0
    directory = _directory(asked=asked, clock=lambda: now)
    broken = [_publish_broken(directory, f"broken{at}", 1, next_try=at) for at in (1.0, 2.0, None)]
    directory.try_again()
    assert asked == []
    now = 1.0
    directory.try_again()
    directory.try_again()
    assert asked == broken[:1]
    assert not directory.give_up_unwanted(broken[0])


def test_a_version_that_once_failed_is_given_up_when_who_asked_for_it_has_left():
    directory = _directory(clock=lambda: 1.0)
    version = _publish_broken(directory, "task", 1, next_try=1.0)
    directory.try_again()
    directory.unloaded(version, VersionUnavailable("no room"))
    directory.unpin(directory.pin(["task"], ASKS))
    assert directory.give_up_unwanted(version)


def test_what_is_counted_is_counted_without_a_look_at_each_version():
    """A scrape of the metrics costs the same with ten versions and with ten thousand."""
    looked_at = []

    class Watched(Version):
        def __getattribute__(self, name):
            looked_at.append(name)
            return super().__getattribute__(name)

    directory = _directory()
    for number in range(1, 11):
        publish(directory, Watched(_record("task", number), number), {"live": Alias(1)})
    looked_at.clear()
    assert directory.counts() == {"tasks": 1, "versions": 10, "resident": 10, "unavailable": 0, "damaged": 0}
    assert looked_at == []


def test_what_was_not_loaded_is_no_longer_unavailable_for_a_reason_of_before():
    directory = _directory()
    version = _publish_broken(directory, "task", 1, next_try=1.0)
    directory.begin_loading(version)
    directory.unloaded(version, VersionUnavailable("no room"))
    assert (version.state, version.reason, version.next_try) == (State.REGISTERED, None, None)


def test_live_leaves_out_what_is_unavailable(directory):
    assert [version.facts.task for version in directory.pin_live(lambda _: True, most=9, principal=ASKS)] == ["a"]


def test_live_tasks_that_are_not_wanted_are_not_pinned():
    released = []
    directory = _directory(released)
    for slot, name in enumerate(("a", "b"), 1):
        publish(directory, _resident(name, 1, slot), {"live": Alias(1)})
    assert [
        version.slot for version in directory.pin_live(lambda facts: facts.task != "a", most=9, principal=ASKS)
    ] == [2]
    retire(directory, "a", 1)
    retire(directory, "b", 1)
    assert released == [1]


def test_more_live_tasks_than_wanted_are_refused_without_looking_at_all_of_them():
    """Of a hundred thousand tasks as few are looked at as of a dozen, and nothing is pinned."""
    looked_at = []
    directory = _directory()
    for slot in range(1, 13):
        publish(directory, _resident(f"task-{slot}", 1, slot), {"live": Alias(1)})
    everything = directory.pin_live(lambda _: True, most=12, principal=ASKS)
    assert len(everything) == 12
    directory.unpin(everything)
    with pytest.raises(InvalidInput, match="more than 3 tasks"):
        directory.pin_live(lambda facts: not looked_at.append(facts.task), most=3, principal=ASKS)
    assert len(looked_at) == 4
    assert sorted(directory.evict() for _ in range(12)) == list(range(1, 13))


BEGINNINGS = st.text("ab-", max_size=3)
GLOBS = st.lists(st.text("ab-*", min_size=1, max_size=4), max_size=4).map(tuple)
NAMES = st.sets(st.text("ab-", min_size=1, max_size=4))


@given(names=NAMES, globs=GLOBS, after=BEGINNINGS, prefix=BEGINNINGS)
def test_a_principal_lists_and_asks_all_of_its_own_tasks_by_name(names, globs, after, prefix):
    directory = _directory()
    for slot, name in enumerate(names, 1):
        publish(directory, _resident(name, 1, slot), {"live": Alias(1)})
    who = Principal("someone", frozenset(Scope), globs)
    own = sorted(name for name in names if any(fnmatchcase(name, glob) for glob in globs))
    assert [version.facts.task for version in directory.pin_live(lambda _: True, most=999, principal=who)] == own
    page = [name for name in own if name > after and name.startswith(prefix)]
    assert [task.name for task in directory.tasks(after, 2, prefix, who)] == page[:2]


def test_a_tenants_list_and_its_fan_out_look_at_no_other_tenants_tasks(monkeypatch):
    """Of ten tasks as few as of a hundred thousand, which would keep everybody waiting: one lock holds them."""
    looked_at = []
    sees = Principal.sees
    monkeypatch.setattr(Principal, "sees", lambda self, task: looked_at.append(task) or sees(self, task))
    directory = _directory()
    for slot in range(1, 11):
        publish(directory, _resident(f"{'acme' if slot > 7 else 'blue'}-{slot}", 1, slot), {"live": Alias(1)})
    who = Principal("someone", frozenset(Scope), ("acme-*", "acme-8*", "acm0-*"))
    assert len(directory.pin_live(lambda _: True, most=9, principal=who)) == 3
    assert len(directory.tasks("acme-8", 9, "a", who)) == 1
    assert {task.partition("-")[0] for task in looked_at} == {"acme"}


def test_many_live_tasks_of_which_nothing_is_known_are_refused_and_not_left_out():
    directory = _directory()
    for number in range(4):
        record = _record(f"task-{number}", 1)
        entry = VersionEntry(record.task, record.version, record.digest, record.size, record.created_at)
        publish(directory, Version(entry), {"live": Alias(1)})
    assert directory.pin_live(lambda _: True, most=4, principal=ASKS) == []
    with pytest.raises(InvalidInput, match="more than 3 tasks"):
        directory.pin_live(lambda _: True, most=3, principal=ASKS)


def test_a_task_without_live_is_no_live_task(directory):
    directory.show("a", (), (), {"next": Alias(2)})
    assert directory.pin_live(lambda _: True, most=9, principal=ASKS) == []
    with pytest.raises(AliasNotFound):
        directory.pin(["a"], ASKS)
    assert [version.slot for version in directory.pin(["a@next"], ASKS)] == [2]


def test_a_task_goes_with_its_last_version(directory):
    retire(directory, "a", 1)
    retire(directory, "a", 2)
    with pytest.raises(TaskNotFound):
        directory.pin(["a@2"], ASKS)
    assert [task.name for task in directory.tasks("", 10)] == ["broken"]
    assert directory.counts()["tasks"] == 1


def test_find_by_content(directory):
    assert directory.find("a", f"sha256:{2:064x}").slot == 2
    assert directory.find("broken", f"sha256:{1:064x}") is None
    assert directory.find("nobody", f"sha256:{1:064x}") is None


def test_content_whose_file_is_damaged_is_not_found_so_that_an_upload_heals_it(directory):
    version = directory.version("a", 2)
    directory.mark_damaged(version, "other content than its digest says")
    assert directory.find("a", version.entry.digest) is None
    assert directory.pin(["a@2"], ASKS) == [version]
    assert directory.counts()["damaged"] == 1
    directory.mark_damaged(version, None)
    assert directory.find("a", version.entry.digest) is version


def test_the_refusal_says_why_and_when_to_come_back():
    directory = _directory(clock=lambda: 100.0)
    _publish_broken(directory, "task", 1, next_try=107.5)
    with pytest.raises(VersionUnavailable, match="its file is damaged") as refused:
        directory.pin(["task"], ASKS)
    assert refused.value.retry_after == 8


def test_a_cold_version_is_asked_for_once_and_whoever_waits_hears_of_it():
    asked = []
    directory = _directory(asked=asked)
    version = Version(_record("task", 1))
    publish(directory, version, {"live": Alias(1)})
    pinned = directory.pin(["task", "task@1"], ASKS)
    directory.pin(["task"], ASKS)
    assert asked == [version, version]
    [loading] = directory.awaited(pinned, ASKS.name)
    assert not loading.done()
    directory.loaded(version, 7, _record("task", 1))
    assert loading.result() is None
    assert directory.awaited(pinned, ASKS.name) == []
    assert (version.state, version.slot) == (State.RESIDENT, 7)


def test_a_version_that_fails_while_requests_wait_refuses_them():
    directory = _directory()
    version = Version(_record("task", 1))
    publish(directory, version, {"live": Alias(1)})
    pinned = directory.pin(["task"], ASKS)
    [loading] = directory.awaited(pinned, ASKS.name)
    directory.failed(version, "no such file", next_try=None)
    with pytest.raises(VersionUnavailable, match="no such file"):
        loading.result()
    with pytest.raises(VersionUnavailable, match="no such file"):
        directory.awaited(pinned, ASKS.name)


def test_the_least_recently_used_goes_first_and_comes_back_when_it_is_asked_for():
    asked = []
    directory = _directory(asked=asked)
    for number in (1, 2, 3):
        publish(directory, _resident("task", number, number), {"live": Alias(1)})
    directory.unpin(directory.pin(["task@1"], ASKS))
    assert [directory.evict(), directory.evict()] == [2, 3]
    [back] = directory.pin(["task@3"], ASKS)
    assert asked == [back]
    assert back.state is State.LOADING


def test_what_is_pinned_is_never_evicted():
    directory = _directory()
    publish(directory, _resident("task", 1, 1), {"live": Alias(1)})
    pinned = directory.pin(["task"], ASKS)
    assert directory.evict() is None
    directory.unpin(pinned)
    assert directory.evict() == 1
    assert directory.evict() is None


def test_a_version_that_is_deleted_while_it_is_loaded_gives_its_slot_back():
    released = []
    directory = _directory(released)
    version = Version(_record("task", 1))
    publish(directory, version, {"live": Alias(1)})
    pinned = directory.pin(["task"], ASKS)
    retire(directory, "task", 1)
    directory.loaded(version, 4, _record("task", 1))
    assert version.slot == 4
    assert released == []
    directory.unpin(pinned)
    assert released == [4]


class Residency(RuleBasedStateMachine):
    """Random pins, loads, failures, evictions and retirements against a count of who holds which slot."""

    pins = Bundle("pins")

    def __init__(self):
        super().__init__()
        self.released = Counter()
        self.asked, self.now = [], 0.0
        self.directory = Directory(lambda slot: self.released.update([slot]), self.ask, lambda: self.now)
        self.held = Counter()
        self.present = {}
        self.published = self.slots = 0
        self.owned = {}  # slot -> version, as long as the directory has it
        self.evicted = set()

    def ask(self, version, principal):
        if version not in self.asked:
            self.asked.append(version)

    def new_slot(self, version):
        self.slots += 1
        self.owned[self.slots] = version
        return self.slots

    @rule(resident=st.booleans())
    def publish(self, resident):
        self.published += 1
        version = Version(_record("task", self.published), self.slots + 1 if resident else None)
        if resident:
            self.new_slot(version)
        publish(self.directory, version, {"live": Alias(self.published)})
        self.present[self.published] = version

    @precondition(lambda self: self.present)
    @rule(target=pins, data=st.data())
    def pin(self, data):
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.present)), min_size=1, max_size=5))
        refs = [f"task@{number}" for number in numbers]
        if any(self.present[number].state is State.UNAVAILABLE for number in numbers):
            with pytest.raises(VersionUnavailable):
                self.directory.pin(refs, ASKS)
            return []
        versions = self.directory.pin(refs, ASKS)
        self.held.update(versions)
        return versions

    @rule(versions=consumes(pins))
    def unpin(self, versions):
        self.directory.unpin(versions)
        self.held.subtract(versions)

    @precondition(lambda self: self.asked)
    @rule(outcome=st.sampled_from(["loaded", "failed", "unloaded"]))
    def load(self, outcome):
        version = self.asked.pop(0)
        if outcome == "loaded":
            self.directory.loaded(version, self.new_slot(version), _record("task", version.entry.version))
        elif outcome == "failed":
            self.directory.failed(version, "for a test", self.now + 2.0, damaged=len(self.present) % 2 == 0)
        else:
            self.directory.unloaded(version, VersionUnavailable("no room"))

    @rule()
    def evict(self):
        slot = self.directory.evict()
        free = [version for version in self.owned.values() if not self.held[version] and not version.retired]
        assert (slot is None) == (not free)
        if slot is not None:
            assert self.held[self.owned.pop(slot)] == 0
            self.evicted.add(slot)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def try_again(self, data):
        version = self.present[data.draw(st.sampled_from(sorted(self.present)))]
        if self.directory.begin_loading(version):
            self.asked.append(version)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def retire(self, data):
        number = data.draw(st.sampled_from(sorted(self.present)))
        retire(self.directory, "task", number)
        del self.present[number]

    @invariant()
    def slots_go_once_when_nobody_can_use_them(self):
        gone = {slot for slot, version in self.owned.items() if version.retired and not self.held[version]}
        assert self.released == Counter(gone)

    @invariant()
    def nobody_is_asked_to_load_twice(self):
        assert len(set(self.asked)) == len(self.asked)
        assert all(version.state is State.LOADING for version in self.asked)

    @precondition(lambda self: self.present)
    @rule(data=st.data(), reason=st.sampled_from([None, "for a test"]))
    def look_at_the_file(self, data, reason):
        version = self.present[data.draw(st.sampled_from(sorted(self.present)))]
        self.directory.mark_damaged(version, reason)

    @rule()
    def time_passes(self):
        self.now += 1.0
        self.directory.try_again()

    @precondition(lambda self: self.asked)
    @rule()
    def give_up(self):
        version = self.asked[0]
        if self.directory.give_up_unwanted(version):
            assert self.held[version] == 0
            self.asked.remove(version)

    @invariant()
    def counts_are_those_of_a_walk_over_everything(self):
        versions = self.present.values()
        assert self.directory.counts() == {
            "tasks": 1 if versions else 0,
            "versions": len(versions),
            "resident": sum(one.state is State.RESIDENT for one in versions),
            "unavailable": sum(one.state is State.UNAVAILABLE for one in versions),
            "damaged": sum(one.damaged for one in versions),
        }

    @invariant()
    def who_holds_a_resident_version_can_name_its_slot(self):
        for version, count in self.held.items():
            if count and version.state is State.RESIDENT:
                assert self.owned[version.slot] is version


Residency.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestResidency = Residency.TestCase


def test_what_nobody_knows_is_retired_in_silence(directory):
    retire(directory, "nobody", 1)
    retire(directory, "a", 9)
    assert set(directory.task("a").versions) == {1, 2}
