"""The directory: pins hold slots, retired slots go exactly once, references resolve at one moment."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from onebert_server.directory import Directory, Resident, Unavailable
from onebert_store.errors import AliasNotFound, InvalidInput, TaskNotFound, VersionNotFound, VersionUnavailable
from onebert_store.manifest import parse_manifest
from onebert_store.registry import Alias, VersionRecord
from tiny_delta import manifest_dict

MANIFEST = parse_manifest(manifest_dict())


def _record(task, version):
    digest = f"sha256:{version:064x}"
    return VersionRecord(task, version, digest, 1, datetime(2026, 1, 1, tzinfo=UTC), MANIFEST)


@pytest.fixture
def directory():
    made = Directory(lambda slot: None)
    made.publish(Resident(_record("a", 1), 1), {"live": Alias(1)})
    made.publish(Resident(_record("a", 2), 2), {"live": Alias(1), "next": Alias(2)})
    made.publish(Unavailable(_record("broken", 1)), {"live": Alias(1)})
    made.publish(Resident(_record("broken", 2), 3), {"live": Alias(1)})
    return made


def test_references(directory):
    refs = ["a", "a@live", "a@next", "a@2", "broken@2", "a"]
    assert [resident.slot for resident in directory.pin(refs)] == [1, 1, 2, 2, 3, 1]


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
    directory = Directory(released.append)
    directory.publish(Resident(_record("a", 1), 1), {"live": Alias(1)})
    directory.publish(Unavailable(_record("broken", 1)), {"live": Alias(1)})
    with pytest.raises(error):
        directory.pin(["a", ref])
    directory.retire("a", 1)
    assert released == [1]


def test_live_leaves_out_what_is_unavailable(directory):
    assert [resident.record.task for resident in directory.pin_live(lambda _: True)] == ["a"]


def test_live_tasks_that_are_not_wanted_are_not_pinned():
    released = []
    directory = Directory(released.append)
    for slot, name in enumerate(("a", "b"), 1):
        directory.publish(Resident(_record(name, 1), slot), {"live": Alias(1)})
    assert [resident.slot for resident in directory.pin_live(lambda record: record.task != "a")] == [2]
    directory.retire("a", 1)
    directory.retire("b", 1)
    assert released == [1]


def test_a_task_without_live_is_no_live_task(directory):
    directory.set_alias("a", "live", None)
    assert directory.pin_live(lambda _: True) == []
    with pytest.raises(AliasNotFound):
        directory.pin(["a"])
    assert [resident.slot for resident in directory.pin(["a@next"])] == [2]


def test_a_task_goes_with_its_last_version(directory):
    directory.retire("a", 1)
    directory.retire("a", 2)
    with pytest.raises(TaskNotFound):
        directory.pin(["a@2"])
    assert [task.name for task in directory.tasks()] == ["broken"]
    assert directory.counts()["tasks"] == 1


def test_find_by_content(directory):
    assert directory.find("a", f"sha256:{2:064x}").slot == 2
    assert directory.find("broken", f"sha256:{1:064x}") is None
    assert directory.find("nobody", f"sha256:{1:064x}") is None


class Pinning(RuleBasedStateMachine):
    """Random pins, unpins and retirements against a count of who holds what."""

    pins = Bundle("pins")

    def __init__(self):
        super().__init__()
        self.released = Counter()
        self.directory = Directory(lambda slot: self.released.update([slot]))
        self.held = Counter()
        self.present = set()
        self.published = 0

    @rule()
    def publish(self):
        self.published += 1
        version = self.published
        self.directory.publish(Resident(_record("task", version), version), {"live": Alias(version)})
        self.present.add(version)

    @precondition(lambda self: self.present)
    @rule(target=pins, data=st.data())
    def pin(self, data):
        versions = data.draw(st.lists(st.sampled_from(sorted(self.present)), min_size=1, max_size=5))
        residents = self.directory.pin([f"task@{version}" for version in versions])
        self.held.update(versions)
        return residents

    @rule(residents=consumes(pins))
    def unpin(self, residents):
        self.directory.unpin(residents)
        self.held.subtract(resident.slot for resident in residents)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def retire(self, data):
        version = data.draw(st.sampled_from(sorted(self.present)))
        self.directory.retire("task", version)
        self.present.remove(version)

    @invariant()
    def released_once_when_retired_and_unheld(self):
        gone = set(range(1, self.published + 1)) - self.present
        assert self.released == Counter({slot: 1 for slot in gone if not self.held[slot]})


Pinning.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPinning = Pinning.TestCase
