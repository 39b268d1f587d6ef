"""Random histories of a registry against two dictionaries: re-opened, swept, and its database put back meanwhile."""

import copy
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onebert_store.errors import AliasConflict, AliasNotFound, TaskNotFound, VersionInUse, VersionNotFound
from onebert_store.file.format import dumps, loads
from onebert_store.registry import gc
from onebert_store.registry.records import Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from tiny_delta import make_delta


@dataclass
class ModelTask:
    """What the registry should know of a task."""

    last: int = 0
    versions: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)

    def at(self, alias):
        return self.aliases[alias].version if alias in self.aliases else None


DELTAS = [make_delta(seed) for seed in range(4)]
TASKS = st.sampled_from(["a", "b"])
ALIASES = st.sampled_from(["live", "next"])
NUMBERS = st.integers(1, 4)


class RegistryAgreesWithItsModel(RuleBasedStateMachine):
    """Blobs are there for every version, and for every version of the database that may be put back."""

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.registry = Registry.open(self.folder)
        self.model = {}
        self.backup = None

    def teardown(self):
        self.registry.close()
        shutil.rmtree(self.folder)

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
        self.registry.close()
        self.registry = Registry.open(self.folder)

    @rule()
    def back_up(self):
        self.registry.close()
        self.backup = (self.folder / "registry.sqlite3").read_bytes(), copy.deepcopy(self.model)
        self.registry = Registry.open(self.folder)

    @precondition(lambda self: self.backup)
    @rule()
    def restore(self):
        self.registry.close()
        database, model = self.backup
        (self.folder / "registry.sqlite3").write_bytes(database)
        self.model = copy.deepcopy(model)
        self.registry = Registry.open(self.folder)

    @rule()
    def sweep_with_grace(self):
        before = self.blobs()
        with join_store(self.folder) as store:
            assert gc.sweep(store).removed == ()
        assert self.blobs() == before

    @rule()
    def sweep_at_once(self):
        with join_store(self.folder) as store:
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
                task.aliases["live"] = Alias(task.last)
        assert task.versions[record.version] == record.digest == delta.digest

    @rule(name=TASKS, alias=ALIASES, n=NUMBERS, expected=st.none() | NUMBERS)
    def move(self, name, alias, n, expected):
        task = self.existing(name)
        if task is None:
            error = TaskNotFound
        elif n not in task.versions:
            error = VersionNotFound
        elif task.at(alias) != expected:
            error = AliasConflict
        else:
            before = task.aliases.get(alias)
            moved = Alias(n, expected) if n != expected else before
            assert self.registry.move_alias(name, alias, n, expected) == moved
            task.aliases[alias] = moved
            return
        with pytest.raises(error):
            self.registry.move_alias(name, alias, n, expected)

    @rule(name=TASKS, alias=ALIASES, expected=NUMBERS)
    def delete_alias(self, name, alias, expected):
        task = self.existing(name)
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
        elif n in map(task.at, task.aliases):
            error = VersionInUse
        else:
            self.registry.delete_version(name, n)
            del task.versions[n]
            return
        with pytest.raises(error):
            self.registry.delete_version(name, n)

    @invariant()
    def agrees(self):
        found = {task.name: (task.versions, task.aliases) for task in self.registry.tasks()}
        existing = {name: task for name, task in self.model.items() if task.versions}
        assert found == {name: (tuple(task.versions), task.aliases) for name, task in existing.items()}
        entries = self.registry.entries()
        assert {(entry.task, entry.version, entry.digest) for entry in entries} == {
            (name, n, digest) for name, task in self.model.items() for n, digest in task.versions.items()
        }
        assert all(loads(self.registry.read(entry)).digest == entry.digest for entry in entries)
        with join_store(self.folder) as store:
            orphans = {orphan.blob.digest for orphan in gc.find_orphans(store)}
        assert orphans == self.blobs() - self.digests()


RegistryAgreesWithItsModel.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestRegistryAgreesWithItsModel = RegistryAgreesWithItsModel.TestCase
