"""Reads, folds, checks and evicts the versions in memory; the loader decides which, and when."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import torch

from onebert_encoder.answering.scores import Logits
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.maths.rows import Row
from onebert_server.access.context import Context
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host, Slot
from onebert_server.fairness.shares import Permits
from onebert_server.threads import all_shielded
from onebert_server.versions.directory import Directory
from onebert_server.versions.residency.fetches import Fetches
from onebert_server.versions.residency.golden_check import GoldenCheck
from onebert_server.versions.residency.load_queue import LoadQueue
from onebert_server.versions.residency.room import ROOM_TIMEOUT, SHORT_ROOM_TIMEOUT, BankRoom, LargerThanBank
from onebert_server.versions.version import State, Version
from onebert_store import errors
from onebert_store.file.delta import Delta, base_of, require_fit
from onebert_store.file.format import loads
from onebert_store.registry.records import VersionRecord
from onebert_store.registry.registry import Registry

logger = logging.getLogger("onebert.residents")

# Versions whose golden sequences go through the engine together: some 70 tokens each, so half of a full batch.
PROVED_TOGETHER = 64
# Requests that may wait for versions; a principal may hold no more than is left for others.
MAX_WAITING = 1024
# Seconds before the next try of a version that could not be loaded; doubled each time, up to the second number.
RETRY_AFTER, RETRY_AT_MOST = 1.0, 300.0


class Installed(NamedTuple):
    """A version with its row in the bank; `golden_check` is None if the version passed it before."""

    version: Version
    slot: Slot
    record: VersionRecord
    golden_check: GoldenCheck | None
    answers: Future[list[Logits]]


class _Unwanted(errors.BankFull):
    """There is no room for a version that nobody waits for; it is no longer marked as loading."""


class Residents:
    """Keeps the directory's versions in the banks; the least recently used, of any base, are evicted for others."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self.queue = LoadQueue()
        self.directory = Directory([*engine.hosts.values()], self.queue.put, time.monotonic)
        self._engine = engine
        self.fetches = Fetches(registry, self.directory, self.queue)
        self._room = BankRoom(self._any_host.bank.bound, self.directory)
        self._clock = time.monotonic
        self._waiting = Permits(
            MAX_WAITING,
            full="as many requests wait for versions to be loaded as the server holds; try again soon",
            over="more of this caller's requests wait for versions to be loaded than of others'",
        )

    def load(self, versions: Mapping[Version, str]) -> bool:
        """Loads and checks versions, in order, that are marked as loading; returns whether the bank had room for all.

        One that cannot be read or folded, or fails its check, becomes unavailable with a reason; the others go on.
        A version whose file must be fetched stays loading: pass it again once it is among `fetches.arrived()`. Others
        are evicted only for versions that are still wanted; see `Directory.give_up_unwanted`.
        """
        room, timeout = True, ROOM_TIMEOUT
        installed: list[Installed] = []
        try:
            for version, principal in versions.items():
                make_room = partial(self._make_room, version, installed, timeout)
                try:
                    data = self.fetches.take(version, principal)
                    gone = not room and self.directory.give_up_unwanted(version)
                    if data is None or gone or version.state is not State.LOADING:
                        continue
                    installed.append(self._install_stored(version, data, make_room))
                except LargerThanBank as error:
                    self.failed(version, error)
                except _Unwanted:
                    room = False
                except errors.BankFull:
                    # This is no failure of the version: its file was read and folded.
                    self.directory.unloaded(version, _no_room())
                    room, timeout = False, SHORT_ROOM_TIMEOUT
                # Catch everything: the content of one file, even if it triggers a bug here, stops that version alone.
                except Exception as error:
                    self.failed(version, error)
                else:
                    timeout = ROOM_TIMEOUT
                    if installed[-1].golden_check is None:
                        self._check(installed.pop())
            self._check_all(installed)
        finally:
            # Empty unless an unexpected error came.
            for entry in installed:
                entry.slot.release()
        return room

    def install(self, delta: Delta) -> Slot:
        """Folds a delta, installs its row, evicting others for it, and checks it; raises InvalidDelta or BankFull.

        The slot is the caller's until a version in the directory has it.
        """
        host = self._host_of(delta)
        slot = self._room.place(
            host,
            lambda: self._fold(host, delta),
            lambda size: self._room.wait(size, ROOM_TIMEOUT, lambda: not self.queue.closed, host),
        )
        try:
            golden_check = GoldenCheck.for_delta(host.base, delta)
            golden_check.compare(golden_check.begin(self._engine, slot).result())
        except BaseException:
            slot.release()
            raise
        return slot

    async def ready(self, pinned: Sequence[Version], context: Context) -> None:
        """Waits until pinned versions are resident; most requests find them so.

        Raises:
            VersionUnavailable: one of them could not be loaded, or together they are larger than the bank.
            DeadlineExceeded: they were not loaded in time.
            QueueFull: too many requests wait for versions.
            OverShare: the same, and more requests of this principal wait than of others.
        """
        name = context.principal.name
        while awaited := self.directory.awaited(pinned, name):
            self._check_sum(pinned)
            try:
                with self._waiting.held(name):
                    async with asyncio.timeout(context.remaining):
                        # Shielded: a request that leaves must not cancel a loading that others wait for.
                        await all_shielded(map(asyncio.wrap_future, awaited))
            except TimeoutError:
                late = "the request's time was over before its versions were loaded"
                raise errors.DeadlineExceeded(late) from None

    def _check_sum(self, pinned: Sequence[Version]) -> None:
        """Refuses versions that exceed the bank together; one that was never in memory counts its least size."""
        total = sum(version.row_bytes or self._least_bytes(version) for version in set(pinned))
        limit = self._any_host.bank.bound.most_of_row
        if total > limit:
            raise errors.VersionUnavailable(
                f"the versions of this request take {total} bytes of memory together, and there is room for"
                f" {limit}: ask for fewer at once"
            )

    def _least_bytes(self, version: Version) -> int:
        facts = version.known_facts
        host = self._engine.hosts.get(facts.base, self._any_host) if facts else self._any_host
        return host.bank.least_row_bytes(len(facts.labels) if facts else 1)

    @property
    def _any_host(self) -> Host:
        return next(iter(self._engine.hosts.values()))

    def _host_of(self, delta: Delta) -> Host:
        spec = base_of(delta.manifest, [host.base.spec for host in self._engine.hosts.values()])
        return self._engine.hosts[spec.digest]

    def _fold(self, host: Host, delta: Delta) -> tuple[Row, int]:
        require_fit(delta, host.base.spec)
        with torch.inference_mode():
            row = fold_delta(host.base, delta)
            return row, host.bank.size(row)

    def _make_room(self, version: Version, installed: list[Installed], timeout: float, host: Host, size: int) -> bool:
        """Evicts one version, or waits for one that can be evicted while a request waits for this version.

        Before it waits, it publishes the installed versions: otherwise their requests would wait for one another.
        Raises _Unwanted if nobody waits for this version.
        """
        if version.retired or self.directory.give_up_unwanted(version):
            raise _Unwanted("there is no room left, and nobody waits for this version")
        if self._room.evict(size, host):
            return True
        self._check_all(installed)
        return self._room.wait(size, timeout, lambda: version.pins > 0 and not self.queue.closed, host)

    def _install_stored(self, version: Version, data: bytes, make_room: Callable[[Host, int], bool]) -> Installed:
        delta = loads(data)
        host = self._host_of(delta)
        # The file's own manifest, which its digest covers; the registry's copy may be damaged.
        record = version.entry.with_manifest(delta.manifest)

        def folded() -> tuple[Row, int]:
            row, size = self._fold(host, delta)
            self.directory.know(version, record, size)  # even if there is no room for its row
            return row, size

        slot = self._room.place(host, folded, partial(make_room, host))
        if version.proved:
            return Installed(version, slot, record, None, Future())
        try:
            golden_check = GoldenCheck.for_delta(host.base, delta)
            return Installed(version, slot, record, golden_check, golden_check.begin(self._engine, slot))
        except BaseException:
            slot.release()
            raise

    def _check_all(self, installed: list[Installed]) -> None:
        while installed:
            self._check(installed.pop(0))

    def _check(self, entry: Installed) -> None:
        try:
            if entry.golden_check:
                entry.golden_check.compare(entry.answers.result())
        # Catch everything, as in `load`: this version alone is unavailable, and its slot is free again.
        except Exception as error:
            entry.slot.release()
            self.failed(entry.version, error)
        else:
            self.directory.loaded(entry.version, entry.slot, entry.record)

    def failed(self, version: Version, error: Exception) -> None:
        """Marks a version that could not be loaded, logs the reason, and schedules its next try."""
        entry = version.entry
        if version.retired or isinstance(error, errors.QueueFull | errors.ShuttingDown):
            self.directory.unloaded(version, error)
            return
        if isinstance(error, errors.OneBertError):
            reason = error.detail
            logger.error("version %d with %s is unavailable: %s", entry.version, entry.digest, error.code)
        else:
            reason = f"loading failed with {type(error).__name__}; the log says where"
            logger.exception("version %d with %s is unavailable", entry.version, entry.digest)
        # No next try for wrong content: the file never changes, and neither do the base and the bank's bound.
        next_try = None if isinstance(error, errors.InvalidDelta | LargerThanBank) else self._next_try(version)
        self.directory.failed(version, reason, next_try)

    def _next_try(self, version: Version) -> float:
        # Ten doublings exceed the bound already; a thousand would overflow a float.
        return self._clock() + min(RETRY_AFTER * 2.0 ** min(version.failures, 10), RETRY_AT_MOST)


def _no_room() -> errors.VersionUnavailable:
    return errors.VersionUnavailable("the versions in memory leave no room for this one, and all of them are in use", 1)
