"""The registry brought into memory: what is stored becomes rows of the bank, what is uploaded is proved and stored."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from onebert_encoder.base import Base
from onebert_encoder.fold import fold, to_tensors
from onebert_encoder.predict import golden_tokens, golden_tolerance, tokens_of_ids
from onebert_server.bank import Bank
from onebert_server.directory import Directory, Entry, Resident, Unavailable
from onebert_server.engine import Engine, Item
from onebert_store import console
from onebert_store.blobs import Staged
from onebert_store.delta import Delta, check
from onebert_store.errors import GoldenMismatch, NotFinite, OneBertError
from onebert_store.format import loads
from onebert_store.manifest import Golden
from onebert_store.registry import Alias, Registry, VersionRecord

logger = logging.getLogger("onebert.catalog")


class Catalog:
    """Keeps registry, bank and directory in step: every change is in the registry before a request can see it.

    All methods block; the event loop calls them through threads. Uploads come one at a time, from one thread.
    """

    def __init__(self, base: Base, bank: Bank, engine: Engine, registry: Registry) -> None:
        self._base = base
        self._bank = bank
        self._engine = engine
        self._registry = registry
        self._changes = threading.Lock()
        self.directory = Directory(bank.release)

    def load(self) -> None:
        """Loads every registered version; one that cannot be loaded is marked and does not stop the others."""
        aliases = {task.name: task.aliases for task in self._registry.tasks()}
        with console.progress() as bar:
            for record in bar.track(self._registry.versions(), description="loading versions"):
                self.directory.publish(self._load(record), aliases[record.task])

    def _load(self, record: VersionRecord) -> Entry:
        try:
            return Resident(record, self._install(loads(self._registry.read(record))))
        except OneBertError as error:
            logger.error("version %d with %s is unavailable: %s", record.version, record.digest, error.code)
            return Unavailable(record)

    def upload(self, task: str, staged: Staged) -> tuple[VersionRecord, bool]:
        """Takes a staged file: reads, checks, folds, installs, proves, stores, publishes; or leaves no trace of it.

        Returns:
            The version that holds the content, and whether it is new.

        Raises:
            InvalidDelta: what is wrong with the file.
            QueueFull, ShuttingDown, StorageFull: what is wrong with the server.
        """
        with staged:
            delta = loads(staged.read())
            if known := self.directory.find(task, delta.digest):
                return known.record, False
            # On a thread that ends, and with it the threads that it computes with: see Engine.
            with ThreadPoolExecutor(1, "onebert-installer") as thread:
                slot = thread.submit(self._install, delta).result()
            try:
                self._prove(delta, slot)
                with self._changes:
                    record, created = self._registry.add(task, delta, staged)
                    self.directory.publish(Resident(record, slot), self._registry.task(task).aliases)
            except BaseException:
                self._bank.release(slot)
                raise
            return record, created

    def move_alias(self, task: str, alias: str, version: int, expected: int | None) -> Alias:
        """Compare-and-set; in effect for every request that is admitted after it returns."""
        with self._changes:
            moved = self._registry.move_alias(task, alias, version, expected)
            self.directory.set_alias(task, alias, moved)
            return moved

    def delete_alias(self, task: str, alias: str, expected: int) -> None:
        """Deletes an alias if it is where it is said to be."""
        with self._changes:
            self._registry.delete_alias(task, alias, expected)
            self.directory.set_alias(task, alias, None)

    def delete_version(self, task: str, version: int) -> None:
        """Deletes a version that no alias points at; requests that hold it are still answered by it."""
        with self._changes:
            self._registry.delete_version(task, version)
            self.directory.retire(task, version)

    def read_delta(self, record: VersionRecord) -> bytes:
        """The canonical bytes of a version, verified."""
        return self._registry.read(record)

    def _install(self, delta: Delta) -> int:
        check(delta, self._base.spec)
        with torch.inference_mode():
            return self._bank.install(fold(self._base, to_tensors(delta, self._base), delta.manifest.pooling))

    def _prove(self, delta: Delta, slot: int) -> None:
        """Runs the golden sequences through the engine, as any request; without them, any sequences for finiteness."""
        manifest, golden = delta.manifest, delta.manifest.golden
        if golden is None:
            tokens = golden_tokens(self._base, manifest.max_length, manifest.per_token)
        else:
            tokens = [tokens_of_ids(ids) for ids in golden.input_ids]
        logits = self._engine.submit([Item(one, slot) for one in tokens]).result()
        if not all(np.isfinite(row).all() for row in logits):
            raise NotFinite("the delta's answers are not finite numbers")
        if golden is not None:
            bias = delta.tensors["head.bias"].astype(np.float64).tolist()
            _compare(golden, logits, golden_tolerance(self._base.precision, golden.logits, bias))


def _compare(golden: Golden, logits: Sequence[np.ndarray], tolerance: float) -> None:
    worst = max(
        float(np.abs(here.ravel() - np.asarray(there)).max()) for here, there in zip(logits, golden.logits, strict=True)
    )
    if not worst <= tolerance:
        raise GoldenMismatch(
            f"the logits computed here differ from the trainer's by up to {worst:.2g}; {tolerance:.2g} is allowed"
        )
