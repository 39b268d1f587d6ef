"""Versions whose files have to be fetched: nobody else waits for a bucket, whatever it does."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from bases import tiny_base
from onebert_server.access.context import own_work
from onebert_server.access.principal import root
from onebert_server.run.opening import REGISTRARS, open_runtime
from onebert_server.settings import load_settings
from onebert_server.versions import catalog
from onebert_server.versions.residency import loader
from onebert_server.versions.residency.fetches import AT_ONCE
from onebert_server.versions.store import store_address
from onebert_server.versions.version import State
from onebert_store.blobs.folder import FolderBlobs
from onebert_store.errors import BlobsAway
from onebert_store.file.format import MAX_FILE_BYTES, loads
from onebert_store.registry import store
from onebert_store.registry.registry import Registry
from runtimes import client
from servers import Task, wait_until

# Only ends a test that fails.
WAIT = 600


class Bucket:
    """Blobs elsewhere, some with copies on this machine; who asks for others waits until the gate is opened."""

    def __init__(self, folder):
        self._blobs = FolderBlobs(folder, MAX_FILE_BYTES)
        self.copies, self.asked, self.away = set(), [], False
        self.gate = threading.Event()
        self.hold = self.gate
        self.under_way, self.most_under_way = 0, 0
        self._counting = threading.Lock()

    def __getattr__(self, name):
        return getattr(self._blobs, name)

    def get_local(self, digest):
        return self._blobs.get(digest) if digest in self.copies else None

    def get(self, digest):
        if digest in self.copies:
            return self.get_local(digest)
        with self._counting:
            self.asked.append(digest)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            self.hold.wait(WAIT)
            if self.away:
                raise BlobsAway("the store's bucket does not work")
            return self._blobs.get(digest)
        finally:
            with self._counting:
                self.under_way -= 1


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    made = Bucket(tmp_path / "bucket")
    monkeypatch.setitem(store.BLOBS, "held", lambda address, make: made)
    monkeypatch.setattr(loader, "LOOK_EVERY", 0.01)
    return made


@contextmanager
def opened(folder, bucket, count, copies=(), live=False, labels=3, **given):
    """A replica with so many tasks, and the digests of their versions; of some there are copies."""
    given |= {"data_dir": folder / "data", "blobs": "held://"}
    settings = load_settings(base=str(tiny_base()), dtype="float32", threads=1, **given)
    with Registry.open(store_address(settings)) as registry:
        digests = [
            registry.add(f"task{seed}", loads(Task(labels=labels, seed=seed).file))[0].digest for seed in range(count)
        ]
        for seed in range(0 if live else count):
            registry.delete_alias(f"task{seed}", "live", 1)
    bucket.copies = {digests[number] for number in copies}
    with open_runtime(settings) as runtime:
        try:
            yield runtime, digests
        finally:
            bucket.gate.set()


def state(runtime, number):
    return runtime.directory.version(f"task{number}", 1).state


def ask(runtime, *numbers, principal="one"):
    """Pins versions as a request does, and gives what says when they are loaded."""
    pinned = runtime.directory.pin([f"task{number}@1" for number in numbers], root(principal))
    return pinned, [version.loading for version in pinned]


def test_copies_are_loaded_while_the_bucket_hangs(tmp_path, bucket):
    """However many wait for the bucket, and whoever has asked first."""
    with opened(tmp_path, bucket, 2 * AT_ONCE + 1, copies=[2 * AT_ONCE]) as (runtime, _):
        _, far = ask(runtime, *range(2 * AT_ONCE))
        wait_until(lambda: bucket.asked)
        _, [near] = ask(runtime, 2 * AT_ONCE)
        near.result(WAIT)
        assert not any(future.done() for future in far)
        bucket.gate.set()
        for future in far:
            future.result(WAIT)


def test_files_are_fetched_side_by_side_within_a_bound(tmp_path, bucket):
    with opened(tmp_path, bucket, 3 * AT_ONCE) as (runtime, digests):
        _, loading = ask(runtime, *range(3 * AT_ONCE))
        wait_until(lambda: bucket.under_way == AT_ONCE)
        bucket.gate.set()
        for future in loading:
            future.result(WAIT)
        assert bucket.most_under_way == AT_ONCE
        assert sorted(bucket.asked) == sorted(digests)


def test_many_fetches_do_not_delay_anothers_one(tmp_path, bucket):
    count = 4 * AT_ONCE
    with opened(tmp_path, bucket, count + 1) as (runtime, digests):
        ask(runtime, *range(count), principal="greedy")
        wait_until(lambda: bucket.under_way == AT_ONCE)
        _, [loading] = ask(runtime, count, principal="modest")
        wait_until(lambda: not runtime.residents.queue)
        bucket.gate.set()
        loading.result(WAIT)
        assert bucket.asked.index(digests[count]) <= 2 * AT_ONCE + 1


def test_what_nobody_wants_is_not_fetched(tmp_path, bucket):
    with opened(tmp_path, bucket, AT_ONCE + 1) as (runtime, digests):
        first, loading = ask(runtime, *range(AT_ONCE))
        wait_until(lambda: bucket.under_way == AT_ONCE)
        late, _ = ask(runtime, AT_ONCE)
        wait_until(lambda: not runtime.residents.queue)
        deleted = first.pop()
        runtime.directory.unpin([*late, deleted])
        runtime.catalog.delete_task(deleted.entry.task, own_work("test"))
        bucket.gate.set()
        for future in loading[:-1]:
            future.result(WAIT)
        wait_until(lambda: [future.state for future in (*late, deleted)] == [State.REGISTERED] * 2)
        assert digests[AT_ONCE] not in bucket.asked
        ask(runtime, AT_ONCE)[1][0].result(WAIT)


def test_a_start_waits_for_a_bucket_within_its_bound(tmp_path, bucket, monkeypatch):
    """What has come by then is loaded, and the rest while the server answers."""
    monkeypatch.setattr(catalog, "LOAD_SECONDS", 1.0)
    count = AT_ONCE + 2
    with opened(tmp_path, bucket, count, copies=[count - 1], live=True) as (runtime, _):
        states = [version.state for version in runtime.directory.versions()]
        assert states.count(State.RESIDENT) == 1
        assert state(runtime, count - 1) is State.RESIDENT
        bucket.gate.set()
        wait_until(lambda: runtime.directory.counts()["resident"] == count)


def test_a_start_fetches_no_more_than_the_bank_holds(tmp_path, bucket):
    bucket.gate.set()
    count = 8 * AT_ONCE
    with opened(tmp_path, bucket, count, live=True, labels=800, bank_bytes=2**20) as (runtime, _):
        all_versions = runtime.directory.versions()
        wait_until(lambda: not [all_version for all_version in all_versions if all_version.state is State.LOADING])
        held = runtime.directory.counts()["resident"]
        assert 1 < held <= len(bucket.asked) <= held + 2 * AT_ONCE < count
        [last] = [number for number in range(count) if state(runtime, number) is State.REGISTERED][-1:]
        ask(runtime, last)[1][0].result(WAIT)


def test_hanging_downloads_hold_up_no_look_at_the_registry(tmp_path, bucket):
    async def asked(runtime):
        async with client(runtime, timeout=WAIT) as web:
            path = "/v1/tasks/task0"
            downloads = [asyncio.create_task(web.get(f"{path}/versions/1/delta")) for _ in range(REGISTRARS)]
            while bucket.under_way < REGISTRARS:
                await asyncio.sleep(0)
            assert (await web.get(path)).status_code == 200
            assert not any(answer.done() for answer in downloads)
            bucket.gate.set()
            assert [answer.status_code for answer in await asyncio.gather(*downloads)] == [200] * REGISTRARS

    with opened(tmp_path, bucket, 1) as (runtime, _):
        asyncio.run(asked(runtime))


def test_who_waits_for_a_file_when_the_server_ends_is_told(tmp_path, bucket):
    with opened(tmp_path, bucket, AT_ONCE + 1) as (runtime, _), ThreadPoolExecutor(1) as closer:
        pinned, loading = ask(runtime, *range(AT_ONCE + 1))
        wait_until(lambda: bucket.under_way == AT_ONCE)
        wait_until(lambda: not runtime.residents.queue)
        closed = closer.submit(runtime.loader.close)
        wait_until(lambda: runtime.residents.queue.closed)
        bucket.gate.set()
        closed.result(WAIT)
        assert all(future.done() for future in loading)
        assert not [version for version in pinned if version.state is State.LOADING]
