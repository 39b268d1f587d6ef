"""Versions in memory: proved before they answer, evicted and back again, and none that is broken stops the others."""

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
import pytest
import torch

from onebert_encoder.answering.asked import Asked
from onebert_server.access.context import own_work
from onebert_server.access.principal import root
from onebert_server.answering.gateway import Wanted
from onebert_server.engine.banks import bank
from onebert_server.engine.host import Passes, Speed
from onebert_server.versions import catalog
from onebert_server.versions.residency import residents
from onebert_server.versions.residency.loader import Loader
from onebert_server.versions.residency.residents import RETRY_AT_MOST
from onebert_server.versions.version import State
from onebert_store.errors import (
    BankFull,
    OverShare,
    QueueFull,
    StoreCorrupt,
    Unhealthy,
    VersionUnavailable,
)
from onebert_store.file.format import loads
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from onebert_store.registry.target import alone
from parts import context
from runtimes import WORK, get, opened, upload
from servers import Task, store, wait_until

TEXT = "the screen was broken"
# All clients of a replica are answered on one event loop.
LOOP = asyncio.new_event_loop()
Thread(target=LOOP.run_forever, daemon=True).start()


def crowd(count):
    """So many tasks, of which a bank of a mebibyte holds a few."""
    return {f"task{seed}": Task("everything", labels=800, seed=seed) for seed in range(count)}


def damage_manifest(folder, where):
    with sqlite3.connect(folder / "registry.sqlite3") as database:
        database.execute(f"UPDATE versions SET manifest = '{{}}' WHERE {where}")
    database.close()


def gauge(runtime, name):
    return runtime.metrics.registry.get_sample_value(f"onebert_{name}")


def raising(error):
    """A clock that no loader expects."""

    def clock():
        raise error

    return clock


def blob(folder, record):
    return folder / "blobs" / record.digest.removeprefix("sha256:")


def ask(runtime, *refs, principal="test"):
    """The logits of each version for the text; any thread may ask, as clients do, whom one loop answers."""
    wanted = Wanted(refs, asked=Asked(activation="none"))
    asking = runtime.answerer.answer(
        context(principal), wanted, [TEXT], lambda _, answered: answered.read().answer.scores
    )
    return asyncio.run_coroutine_threadsafe(asking, LOOP).result(600)


def move(runtime, name, alias, version, expected):
    """Moves an alias as the route does."""

    async def moved():
        async with runtime.catalog.in_memory(name, [version], own_work("test")):
            return runtime.catalog.move_alias(name, alias, alone(version), expected and str(expected), WORK)[0]

    return asyncio.run(moved())


def state(runtime, name):
    return runtime.directory.version(name, 1).state


def assert_same(answers, tasks):
    for logits, task in zip(answers, tasks, strict=True):
        np.testing.assert_allclose(logits, task.logits(TEXT).ravel(), atol=1e-4)


def assert_answers(runtime, **tasks):
    assert_same(ask(runtime, *tasks), tasks.values())


def test_golden_logits_are_proved_when_a_stored_version_is_loaded(tmp_path):
    good = {f"good{seed}": Task(seed=seed).with_golden() for seed in range(3)}
    store(tmp_path, **good, wrong=Task(seed=9).with_golden(shift=1.0))
    with opened(tmp_path) as runtime:
        assert_answers(runtime, **good)
        wrong = runtime.directory.version("wrong", 1)
        assert wrong.state is State.UNAVAILABLE
        assert "differ from the trainer's" in wrong.reason
        assert wrong.next_try is None
        assert runtime.hosts[0].base.spec  # the runtime has started, whatever one version is like
        with pytest.raises(VersionUnavailable, match="differ from the trainer's"):
            ask(runtime, "wrong")


def test_a_damaged_row_costs_nothing_where_the_file_is_whole(tmp_path):
    tasks = {"one": Task(seed=1), "two": Task(seed=2)}
    store(tmp_path, **tasks)
    damage_manifest(tmp_path, "task = 'one'")
    with opened(tmp_path) as runtime:
        assert_answers(runtime, **tasks)
        manifest = runtime.catalog.manifests.read(runtime.directory.version("one", 1).entry)
        assert manifest.labels == tasks["one"].manifest["labels"]


def test_a_blob_that_cannot_be_read_stops_one_version(tmp_path):
    tasks = {name: Task(seed=seed) for seed, name in enumerate(("whole", "dir", "gone", "bent"))}
    records = dict(zip(tasks, store(tmp_path, **tasks), strict=True))
    blob(tmp_path, records["dir"]).unlink()
    blob(tmp_path, records["dir"]).mkdir()
    blob(tmp_path, records["gone"]).unlink()
    blob(tmp_path, records["bent"]).write_bytes(b"something else")
    with opened(tmp_path) as runtime:
        assert_answers(runtime, whole=tasks["whole"])
        for name in ("dir", "gone", "bent"):
            version = runtime.directory.version(name, 1)
            assert version.state is State.UNAVAILABLE
            assert version.reason
            # It is known by its row in the registry.
            assert version.facts.labels == tasks[name].manifest["labels"]
            assert version.next_try is not None
        assert runtime.directory.counts()["unavailable"] == 3


def test_what_comes_back_is_found_without_a_restart(tmp_path):
    task = Task(seed=1)
    [record] = store(tmp_path, task=task)
    away = blob(tmp_path, record).rename(tmp_path / "away")
    with opened(tmp_path) as runtime:
        with pytest.raises(VersionUnavailable) as refused:
            ask(runtime, "task")
        assert refused.value.retry_after >= 1
        away.rename(blob(tmp_path, record))
        wait_until(lambda: state(runtime, "task") is State.RESIDENT)
        assert_answers(runtime, task=task)


def test_the_loader_survives_an_error_that_nobody_expected(tmp_path, caplog):
    tasks = {"gone": Task(seed=1), "task": Task(seed=2)}
    records = dict(zip(tasks, store(tmp_path, **tasks), strict=True))
    away = blob(tmp_path, records["gone"]).rename(tmp_path / "away")
    with opened(tmp_path) as runtime:
        runtime.directory._clock = raising(ZeroDivisionError)
        wait_until(lambda: "unexpected error" in caplog.text)
        assert not runtime.loader.dead
        runtime.directory._clock = time.monotonic
        away.rename(blob(tmp_path, records["gone"]))
        wait_until(lambda: state(runtime, "gone") is State.RESIDENT)
        assert_answers(runtime, **tasks)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loader_that_is_dead_makes_the_replica_unhealthy(tmp_path):
    with opened(tmp_path) as runtime:
        runtime.check_health()
        runtime.directory._clock = raising(SystemExit)
        wait_until(lambda: runtime.loader.dead)
        with pytest.raises(Unhealthy, match="loader"):
            runtime.check_health()


def test_who_waits_for_many_versions_leaves_room_for_others(tmp_path, monkeypatch):
    """Of eight requests that may wait, one principal has four, and another one is still let in."""
    monkeypatch.setattr(residents, "MAX_WAITING", 8)
    store(tmp_path, task=[Task(seed=seed) for seed in range(2)])

    async def live(runtime):
        pinned = runtime.directory.pin(["task@2"] * 8, root("greedy"))  # nothing loads it: the loader has not begun
        try:
            wait = runtime.residents.ready
            waiting = [asyncio.ensure_future(wait(pinned[:1], context("greedy"))) for _ in range(4)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await wait(pinned[:1], context("greedy"))
            waiting.append(asyncio.ensure_future(wait(pinned[:1], context("modest"))))
            await asyncio.sleep(0)
            with pytest.raises(OverShare):
                await wait(pinned[:1], context("greedy"))
            assert not any(future.done() for future in waiting)
            runtime.directory.unloaded(pinned[0], VersionUnavailable("for a test"))
            for future in waiting:
                with pytest.raises(VersionUnavailable, match="for a test"):
                    await future
        finally:
            runtime.directory.unpin(pinned)

    monkeypatch.setattr(Loader, "start", lambda *_: None)
    with opened(tmp_path) as runtime:
        asyncio.run(live(runtime))


def test_a_broken_version_is_refused_while_others_load(tmp_path, monkeypatch):
    store(tmp_path, task=[Task(seed=seed) for seed in range(3)])

    async def live(runtime):
        pinned = runtime.directory.pin(["task@2", "task@3"], root("test"))  # nothing loads them
        try:
            waiting = asyncio.ensure_future(runtime.residents.ready(pinned, context(seconds=10)))
            await asyncio.sleep(0)
            runtime.directory.unloaded(pinned[1], VersionUnavailable("for a test"))
            with pytest.raises(VersionUnavailable, match="for a test"):
                await waiting
        finally:
            runtime.directory.unpin(pinned)

    monkeypatch.setattr(Loader, "start", lambda *_: None)
    with opened(tmp_path) as runtime:
        asyncio.run(live(runtime))


def test_only_live_versions_are_loaded_at_the_start(tmp_path):
    first, second = Task(seed=1).with_golden(), Task(seed=2).with_golden()
    store(tmp_path, task=[first, second])
    with opened(tmp_path) as runtime:
        assert runtime.directory.version("task", 1).state is State.RESIDENT
        assert runtime.directory.version("task", 2).state is State.REGISTERED
        assert runtime.directory.version("task", 2).facts.labels == second.manifest["labels"]
        assert_same(ask(runtime, "task@2"), [second])
        assert runtime.directory.version("task", 2).state is State.RESIDENT


def test_the_list_of_tasks_and_a_tasks_versions_come_in_pages(tmp_path):
    with Registry.open(tmp_path) as registry:
        for name in ("b", "acme-2", "acme-1", "acme", "a"):
            registry.add(name, loads(Task(seed=1).file))
        for seed in (2, 3):
            registry.add("b", loads(Task(seed=seed).file))

    def names(runtime, query):
        page = get(runtime, f"/v1/tasks?{query}").json()
        return [task["name"] for task in page["tasks"]], page["next"]

    def numbers(runtime, query):
        page = get(runtime, f"/v1/tasks/b?{query}").json()
        return [version["version"] for version in page["versions"]], page["next"]

    with opened(tmp_path) as runtime:
        assert names(runtime, "") == (["a", "acme", "acme-1", "acme-2", "b"], None)
        assert names(runtime, "prefix=acme&limit=2") == (["acme", "acme-1"], "acme-1")
        assert names(runtime, "prefix=acme&limit=2&after=acme-1") == (["acme-2"], None)
        assert names(runtime, "prefix=acme-&after=acme") == (["acme-1", "acme-2"], None)
        assert names(runtime, "prefix=c") == names(runtime, "after=b") == ([], None)
        assert numbers(runtime, "") == ([1, 2, 3], None)
        assert numbers(runtime, "limit=2") == ([1, 2], 2)
        assert numbers(runtime, "limit=2&after=2") == ([3], None)
        for query in ("limit=0", "limit=1001", "limit=x", f"after={'x' * 200}"):
            assert get(runtime, f"/v1/tasks?{query}").status_code == 422


def test_an_alias_is_not_moved_to_a_version_that_cannot_answer(tmp_path):
    first = Task(seed=1)
    _, wrong = store(tmp_path, task=[first, Task(seed=2).with_golden(shift=1.0)])
    with opened(tmp_path) as runtime:
        with pytest.raises(VersionUnavailable):
            move(runtime, "task", "live", wrong.version, expected=1)
        assert_answers(runtime, task=first)
        assert runtime.registry.task("task").aliases["live"].version == 1


def test_more_tasks_than_the_bank_holds_are_answered(tmp_path):
    store(tmp_path, **(tasks := crowd(18)))
    with opened(tmp_path, bank_bytes=2**20) as runtime:
        states = {state(runtime, name) for name in tasks}
        assert states == {State.RESIDENT, State.REGISTERED}
        order = np.random.default_rng(1).permutation(list(tasks) * 2).tolist()
        with ThreadPoolExecutor(24) as clients:
            answers = clients.map(lambda name: ask(runtime, name)[0], order)
            assert_same(answers, [tasks[name] for name in order])
        assert {state(runtime, name) for name in tasks} == {State.RESIDENT, State.EVICTED}
        wait_until(lambda: gauge(runtime, "bank_bytes") <= 2**20)


def test_requests_that_need_the_whole_bank_end(tmp_path):
    """Each fits alone, and each holds rows that another one waits for: who is refused may come again soon."""
    store(tmp_path, **(tasks := crowd(30)))
    with opened(tmp_path, bank_bytes=2**20) as runtime, ThreadPoolExecutor(4) as clients:
        cold = [name for name in tasks if state(runtime, name) is not State.RESIDENT]
        most = len(tasks) - len(cold) - 1
        wanted = [cold[index * most : (index + 1) * most] for index in range(3)]
        asked = [clients.submit(ask, runtime, *names, principal=names[0]) for names in wanted]
        errors = [future.exception() for future in asked]
        assert None in errors
        for names, future, error in zip(wanted, asked, errors, strict=True):
            assert error is None or error.retry_after
            answers = ask(runtime, *names) if error else future.result()
            assert_same(answers, [tasks[name] for name in names])


@pytest.mark.parametrize(("module", "step"), [(residents, "fold_delta"), (bank, "cast_branches")])
def test_a_device_without_memory_evicts_or_refuses(tmp_path, monkeypatch, module, step):
    tasks = {"one": Task("everything", seed=1), "two": Task("everything", seed=2)}
    store(tmp_path, **tasks)
    with opened(tmp_path) as runtime:
        runtime.directory.evict().release()
        assert [state(runtime, name) for name in tasks] == [State.EVICTED, State.RESIDENT]
        real, enough = getattr(module, step), lambda: state(runtime, "two") is State.EVICTED

        def greedy(*arguments):
            if not enough():
                torch.empty(2**60, dtype=torch.int8)
            return real(*arguments)

        monkeypatch.setattr(module, step, greedy)
        assert_answers(runtime, one=tasks["one"])
        enough = lambda: False  # noqa: E731
        with pytest.raises(BankFull):
            upload(runtime, "other", Task("everything", seed=3))


def test_a_request_larger_than_the_bank_is_refused(tmp_path):
    store(tmp_path, **(tasks := crowd(18)))
    with opened(tmp_path, bank_bytes=2**20) as runtime:
        with pytest.raises(VersionUnavailable, match=r"no room|ask for fewer"):
            ask(runtime, *tasks)
        for name, task in tasks.items():
            assert_answers(runtime, **{name: task})
        # All sizes were seen now: refused at once, and nothing that a later try could change is promised.
        resident = [name for name in tasks if state(runtime, name) is State.RESIDENT]
        with pytest.raises(VersionUnavailable, match="ask for fewer") as refused:
            ask(runtime, *tasks)
        assert refused.value.retry_after is None
        assert len(resident) > 1
        assert_answers(runtime, task17=tasks["task17"])
        assert runtime.directory.counts()["unavailable"] == 0


def test_a_rollback_does_not_wait_for_a_sweep(tmp_path):
    store(tmp_path, task=[Task(seed=1), Task(seed=2)])
    with opened(tmp_path) as runtime, join_store(tmp_path) as sweeper, ThreadPoolExecutor(2) as clients:
        with runtime.registry.writer() as body:
            body.write(Task(seed=3).file)
            with sweeper.database.sweeping():
                rows = gauge(runtime, "bank_rows")
                upload = clients.submit(runtime.catalog.upload, "task", body, WORK)
                wait_until(lambda: gauge(runtime, "bank_rows") > rows)
                moved = clients.submit(move, runtime, "task", "live", 2, 1)
                wait_until(moved.done)
                assert not upload.done()
            assert upload.result()[0].version == 3
        assert runtime.directory.version("task", 3).state is State.RESIDENT


def test_a_version_that_is_larger_than_the_bank_evicts_nobody(tmp_path):
    store(tmp_path, small=Task("bitfit", seed=1))
    with opened(tmp_path) as runtime:
        runtime.hosts[0].bank.bound.most = 2**18
        with pytest.raises(BankFull, match="larger than the whole bank"):
            upload(runtime, "other", Task("everything", labels=4000, seed=3))
        assert state(runtime, "small") is State.RESIDENT


def test_an_upload_heals_a_damaged_file(tmp_path):
    task = Task(seed=1)
    [record] = store(tmp_path, task=task)
    with opened(tmp_path) as runtime:
        blob(tmp_path, record).write_bytes(b"something else")
        version = runtime.directory.version("task", 1)
        with pytest.raises(StoreCorrupt):
            runtime.catalog.read_delta(version)
        assert_answers(runtime, task=task)
        same, created, _ = upload(runtime, "task", task)
        assert (same.version, created) == (1, False)
        assert runtime.catalog.read_delta(version) == task.file
        assert_answers(runtime, task=task)


def test_a_version_that_failed_often_is_tried_again(tmp_path):
    [record] = store(tmp_path, task=Task(seed=1))
    away = blob(tmp_path, record).rename(tmp_path / "away")
    with opened(tmp_path) as runtime:
        version = runtime.directory.version("task", 1)
        version.failures = 2000
        version.next_try = 0.0
        wait_until(lambda: version.failures > 2000 and version.state is State.UNAVAILABLE)
        assert 0 < version.next_try - time.monotonic() <= RETRY_AT_MOST
        away.rename(blob(tmp_path, record))
        version.next_try = 0.0
        wait_until(lambda: version.state is State.RESIDENT)


def test_unread_manifests_are_read_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "LEARNED_AT_START", 1)
    store(tmp_path, task=[Task(seed=seed) for seed in (1, 2)])
    with opened(tmp_path) as runtime:
        assert runtime.directory.version("task", 2).known_facts is None
        for path in ("/v1/tasks/task", "/v1/tasks/task/versions/2"):
            assert get(runtime, path).status_code == 200
        assert runtime.directory.version("task", 2).known_facts is not None
        assert [version["labels"] for version in get(runtime, "/v1/tasks/task").json()["versions"]] == [3, 3]


def test_the_engine_computes_on_its_threads(tmp_path, monkeypatch):
    """Where it measures its speed as in a pass, though threads of the replica that compute alone set their number."""
    seen, launch = [], Passes.launch

    def measure(*_):
        seen.append(torch.get_num_threads())
        return Speed()

    def launched(*given):
        seen.append(torch.get_num_threads())
        return launch(*given)

    monkeypatch.setattr("onebert_server.engine.engine.measure_speed", measure)
    monkeypatch.setattr(Passes, "launch", launched)
    store(tmp_path, task=Task(seed=1))
    with opened(tmp_path, threads=3) as runtime:
        ask(runtime, "task")
    assert len(seen) > 1
    assert set(seen) == {3}
