"""Random histories of a registry against two dictionaries: by one, by eight at once, swept, its database put back."""

import copy
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lengths import examples
from onebert_store.errors import AliasConflict, AliasNotFound, TaskNotFound, VersionInUse, VersionNotFound
from onebert_store.file.format import dumps, loads
from onebert_store.registry.records import Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress, join_store
from onebert_store.registry.target import Shadow, Target, alone
from onebert_store.upkeep import gc
from stores import all_at_once, orphans
from tiny_delta import make_delta

pytestmark = [pytest.mark.slow]


def after_move(before, to):
    """An alias goes along the versions that were live: back to one of them, or on to another; it forgets no other.

    As long as the present version has a share, it is no way back.
    """
    if before is None:
        return Alias(to)
    if to.version == before.version:
        return Alias(to, before.earlier)
    numbers = [target.version for target in before.earlier]
    if to.version not in numbers or before.version in dict(to.shares):
        return Alias(to, (*before.earlier, before.target)[-32:])
    return Alias(to, before.earlier[: len(numbers) - 1 - numbers[::-1].index(to.version)])


@dataclass
class ModelTask:
    """What the registry should know of a name."""

    last: int = 0
    versions: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)

    def at(self, alias):
        return self.aliases[alias].target.tag if alias in self.aliases else None

    def needed(self):
        return {n for at in self.aliases.values() for n in at.target.numbers}


WRITERS = 8
REFUSALS = AliasConflict, AliasNotFound, TaskNotFound, VersionInUse, VersionNotFound
DELTAS = [make_delta(seed) for seed in range(4)]
TASKS = st.sampled_from(["a", "b", "c"])
ALIASES = st.sampled_from(["live", "next"])
NUMBERS = st.integers(1, 4)
# One version; a split of two; beside either a shadow.
TARGETS = st.lists(NUMBERS, min_size=1, max_size=3, unique=True).map(
    lambda ns: Target(
        ((ns[0], 100),) if len(ns) == 1 else tuple(sorted(zip(ns[:2], (95, 5), strict=True))),
        "principal" if len(ns) == 3 else None,
        tuple(Shadow(n, 50) for n in ns[2:]),
    )
)
NOW = "now"


class Histories(RuleBasedStateMachine):
    """Blobs are there for every version, and for every version of the database that may be put back."""

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.place = self.make_place()
        self.model = {}
        self.backup = None
        self.reopen()

    def teardown(self):
        self.opened.close()
        shutil.rmtree(self.folder)

    def make_place(self):
        """A store that is not there yet."""
        raise NotImplementedError

    def save(self):
        """A copy of the database, which nobody has open."""
        raise NotImplementedError

    def put_back(self, copied):
        """Makes the copy the database; it may be asked for again."""
        raise NotImplementedError

    def at_once(self, work):
        """Runs `work(registry, number)` of eight writers at the same time; None for those who were refused."""
        return all_at_once(WRITERS, lambda n: work(self.writers[n], n), *REFUSALS)

    def existing(self, name):
        """The task as long as it has versions; its numbers stay in the model."""
        task = self.model.get(name)
        return task if task and task.versions else None

    def digests(self):
        return {digest for task in self.model.values() for digest in task.versions.values()}

    def blobs(self):
        return {f"sha256:{path.name}" for path in (self.folder / "blobs").iterdir()}

    @rule()
    def reopen(self):
        """One registry that goes on alone, and seven more of the same store, as other processes have."""
        self.close()
        with ExitStack() as opened:
            self.registry = opened.enter_context(Registry.open(self.place))
            joined = [Registry(opened.enter_context(join_store(self.place))) for _ in range(WRITERS - 1)]
            self.writers = [self.registry, *joined]
            self.opened = opened.pop_all()

    def close(self):
        if hasattr(self, "opened"):
            self.opened.close()

    @rule()
    def back_up(self):
        self.close()
        self.backup = self.save(), copy.deepcopy(self.model)
        self.reopen()

    @precondition(lambda self: self.backup)
    @rule()
    def restore(self):
        self.close()
        copied, model = self.backup
        self.put_back(copied)
        self.model = copy.deepcopy(model)
        self.reopen()

    @rule()
    def sweep_with_grace(self):
        before = self.blobs()
        with join_store(self.place) as store:
            assert gc.sweep(store).removed == ()
        assert self.blobs() == before

    @rule()
    def sweep_at_once(self):
        with join_store(self.place) as store:
            gc.sweep(store, timedelta(0))
        assert self.blobs() == self.digests()
        # A database from before may name blobs that are gone by now.
        self.backup = None

    @rule(name=TASKS, delta=st.sampled_from(DELTAS), streamed=st.booleans())
    def add(self, name, delta, streamed):
        body = self.registry.writer() if streamed else None
        if body:
            body.write(dumps(delta))
        record, created = self.registry.add(name, delta, body)
        task = self.model.setdefault(name, ModelTask())
        assert created == (delta.digest not in task.versions.values())
        if created:
            task.last += 1
            task.versions[task.last] = delta.digest
            if len(task.versions) == 1:
                task.aliases["live"] = Alias(alone(task.last))
        assert task.versions[record.version] == record.digest == delta.digest

    @rule(name=TASKS, alias=ALIASES, to=TARGETS, expected=st.none() | NUMBERS.map(str) | st.just(NOW))
    def move(self, name, alias, to, expected):
        task = self.existing(name)
        expected = task.at(alias) if task and expected == NOW else expected
        if task is None:
            error = TaskNotFound
        elif not task.versions.keys() >= {*to.numbers}:
            error = VersionNotFound
        elif task.at(alias) != expected:
            error = AliasConflict
        else:
            before = task.aliases.get(alias)
            moved = after_move(before, to)
            assert self.registry.move_alias(name, alias, to, expected)[0] == moved
            task.aliases[alias] = moved
            return
        with pytest.raises(error):
            self.registry.move_alias(name, alias, to, expected)

    @rule(name=TASKS, alias=ALIASES, expected=NUMBERS.map(str) | st.just(NOW))
    def delete_alias(self, name, alias, expected):
        task = self.existing(name)
        expected = (task and task.at(alias)) or "1" if expected == NOW else expected
        if task is None:
            error = TaskNotFound
        elif alias not in task.aliases:
            error = AliasNotFound
        elif task.at(alias) != expected:
            error = AliasConflict
        else:
            self.registry.delete_alias(name, alias, expected)
            del task.aliases[alias]
            return
        with pytest.raises(error):
            self.registry.delete_alias(name, alias, expected)

    @rule(name=TASKS, n=NUMBERS)
    def delete(self, name, n):
        task = self.existing(name)
        if task is None:
            error = TaskNotFound
        elif n not in task.versions:
            error = VersionNotFound
        elif n in task.needed():
            error = VersionInUse
        else:
            self.registry.delete_version(name, n)
            del task.versions[n]
            return
        with pytest.raises(error):
            self.registry.delete_version(name, n)

    @rule(name=TASKS)
    def four_delete_the_task_and_four_add_to_it(self, name):
        """However they take turns, what is left is what those added who came after the last deletion."""

        def work(registry, n):
            if n % 2:
                registry.delete_task(name)
                return "gone"
            return registry.add(name, DELTAS[n // 2])

        done = self.at_once(work)
        task = self.model.setdefault(name, ModelTask())
        added = {record.version: record.digest for record, _ in (step for step in done if isinstance(step, tuple))}
        assert len(added) == WRITERS // 2
        task.last = max(task.last, *added)
        left = next((step.versions for step in self.registry.tasks() if step.name == name), ())
        assert "gone" in done or left == tuple(sorted(added))
        every = task.versions | added
        task.versions = {n: every[n] for n in left}
        task.aliases = {"live": Alias(alone(min(left)))} if left else {}

    @invariant()
    def agrees(self):
        tasks = {task.name: (task.versions, task.aliases) for task in self.registry.tasks()}
        existing = {name: task for name, task in self.model.items() if task.versions}
        assert tasks == {name: (tuple(sorted(task.versions)), task.aliases) for name, task in existing.items()}
        entries = self.registry.entries()
        assert {(entry.task, entry.version, entry.digest) for entry in entries} == {
            (name, n, digest) for name, task in self.model.items() for n, digest in task.versions.items()
        }
        assert all(loads(self.registry.read(entry)).digest == entry.digest for entry in entries)
        assert orphans(self.place) == self.blobs() - self.digests()


class OnSqlite(Histories):
    def make_place(self):
        return StoreAddress.within(self.folder)

    def save(self):
        return (self.folder / "registry.sqlite3").read_bytes()

    def put_back(self, copied):
        (self.folder / "registry.sqlite3").write_bytes(copied)


class OnPostgres(Histories):
    def make_place(self):
        self.name, self.copies = self.server.create(), []
        return StoreAddress.within(self.folder, self.server.url(self.name))

    def teardown(self):
        super().teardown()
        for name in (self.name, *self.copies):
            self.server.drop(name)

    def save(self):
        self.copies.append(self.server.create(template=self.name))
        return self.copies[-1]

    def put_back(self, copied):
        self.server.drop(self.name)
        self.server.execute(f"CREATE DATABASE {self.name} TEMPLATE {copied}")


@pytest.fixture
def databases(postgres):
    OnPostgres.server = postgres


OnSqlite.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=30, deadline=None)
OnPostgres.TestCase.settings = settings(max_examples=examples(12), stateful_step_count=30, deadline=None)


class TestOnSqlite(OnSqlite.TestCase):
    pass


@pytest.mark.usefixtures("databases")
class TestOnPostgres(OnPostgres.TestCase):
    pass
