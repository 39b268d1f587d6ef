"""Opens a replica: `open_runtime` is the only place that builds and links the parts of the engine's process."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from onebert_encoder.compute.threads import compute_with
from onebert_server.access.key_poller import KeyPoller
from onebert_server.access.keys import KeyRing
from onebert_server.answering.admission import Admission
from onebert_server.answering.answers import WORKERS, Answerer
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import Host
from onebert_server.engine.memory import give_back_freed_memory
from onebert_server.engine.queue import QueueLimits
from onebert_server.hooks import Hooks
from onebert_server.hosts import begin_loading, compute_threads, front_ends_for, on_a_thread
from onebert_server.run.extension import installed
from onebert_server.run.moves import AliasShares, MoveLog
from onebert_server.runtime import Runtime
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import Metrics
from onebert_server.telemetry.telemetry import open_telemetry
from onebert_server.versions.catalog import Catalog
from onebert_server.versions.follower import Follower
from onebert_server.versions.moves import Moves
from onebert_server.versions.presence import Presence
from onebert_server.versions.progress import Progress
from onebert_server.versions.residency.loader import Loader
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.store import store_address
from onebert_store.registry.registry import Registry

REGISTRARS = 4
# Target duration of a batch in seconds: a text that arrives meanwhile waits for it. Larger batches are hardly faster on
# a CPU, and a GPU runs the largest in less time.
MAX_BATCH_SECONDS = 0.1
# Seconds for the running batch at the end; the requests had `shutdown_timeout` before.
CLOSE_TIMEOUT = 5.0


@contextmanager
def open_runtime(
    settings: Settings, progress: Progress | None = None, loading: Future[list[Host]] | None = None
) -> Iterator[Runtime]:
    """Opens a replica that answers while the block runs; `progress` may give the start up.

    `loading` are the hosts if `begin_loading` was called before.

    The calling thread never computes, so its number of compute threads does not change.

    Raises:
        BaseNotFound, UnsupportedBase, InvalidSettings: the base or the device is not available.
        StoreLocked, StoreCorrupt, StorageFull: the data folder cannot be used.
        ShuttingDown: the start was given up.
    """
    progress = progress or Progress()
    hosts = (loading or begin_loading(settings)).result()
    settings = settings.model_copy(update={"front_ends": front_ends_for(settings, hosts[0].base.device)})
    give_back_freed_memory()
    hooks = Hooks()
    with ExitStack() as opened:
        progress.begin("store", 1)
        registry = opened.enter_context(Registry.open(store_address(settings)))
        telemetry = opened.enter_context(open_telemetry(settings))
        metrics = Metrics(settings.task_metrics, telemetry.tracing is not None, hooks.answered)
        engine = Engine(hosts, engine_limits(settings), metrics, compute_threads(settings), tracing=telemetry.tracing)
        residents = Residents(engine, registry)
        loader = Loader(residents)
        presence = Presence(registry.replicas) if registry.shared else None
        follower = Follower(registry.feed, residents.directory, presence, MoveLog(metrics))
        catalog = Catalog(registry, residents, follower, settings.max_upload_bytes, hooks.deleting, hooks.storage)
        opened.callback(follower.close)
        opened.callback(loader.close)
        workers, registrars, readers, uploader = (
            _pool(opened, size, f"onebert-{name}")
            for name, size in (("worker", WORKERS), ("registrar", REGISTRARS), ("reader", REGISTRARS), ("uploader", 1))
        )
        # The engine closes before the threads above are joined: an upload or a load on one of them may wait for the
        # engine's answers, and ends once the engine is closed.
        opened.callback(engine.close, CLOSE_TIMEOUT)
        engine.start()
        unloaded = on_a_thread(1, partial(catalog.load, progress))
        loader.start(unloaded)
        follower.start()
        keys = KeyRing(settings.api_keys, closed=settings.oidc is not None)
        key_poller = KeyPoller(registry.keys, keys)
        opened.callback(key_poller.close)
        key_poller.start()
        admission = Admission(engine, residents, hooks.shadowed, hooks.sampled)
        telemetry.samples = hooks.sample
        answerer = Answerer(admission.splitters, admission, workers)
        moves = Moves(catalog, hooks.before_move, registrars)
        if settings.task_metrics:
            metrics.registry.register(AliasShares(metrics.answers, catalog.directory, settings.task_metrics))
        _add_gauges(metrics, engine, catalog, follower, key_poller)
        runtime = Runtime(
            hooks=hooks,
            settings=settings,
            keys=keys,
            key_poller=key_poller,
            engine=engine,
            catalog=catalog,
            residents=residents,
            loader=loader,
            follower=follower,
            presence=presence,
            registry=registry,
            admission=admission,
            moves=moves,
            answerer=answerer,
            metrics=metrics,
            telemetry=telemetry,
            workers=workers,
            registrars=registrars,
            readers=readers,
            uploader=uploader,
        )
        for extension in installed():
            if (part := extension.open(runtime, opened)) is not None:
                runtime.parts.add(part)
                runtime.columns += [extension.columns] if extension.columns is not None else []
        try:
            yield runtime
        finally:
            runtime.draining = True


def engine_limits(settings: Settings) -> EngineLimits:
    """Builds the engine's limits from the settings."""
    queue = QueueLimits(max_seconds=settings.max_queue_seconds)
    return EngineLimits(settings.max_batch_tokens, queue, MAX_BATCH_SECONDS)


def _pool(opened: ExitStack, size: int, name: str) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(size, name, compute_with, (1,))
    opened.callback(pool.shutdown, cancel_futures=True)
    return pool


def _add_gauges(metrics: Metrics, engine: Engine, catalog: Catalog, follower: Follower, key_poller: KeyPoller) -> None:
    hosts = [*engine.hosts.values()]
    bound = hosts[0].bank.bound
    metrics.gauge("queue_sequences", "Sequences that wait.", lambda: engine.queue.sequences)
    metrics.gauge("queue_tokens", "Tokens that wait.", lambda: engine.queue.tokens)
    metrics.gauge("queue_seconds", "Estimated seconds of work that waits.", lambda: engine.queue.seconds)
    batch_tokens = {
        digest: partial(getattr, line, "batch_tokens")
        for digest, line in zip(engine.hosts, engine.queue.lines, strict=True)
    }
    metrics.gauge_of("base", "batch_tokens_limit", "Tokens of a batch where more wait.", batch_tokens)
    metrics.gauge("bank_rows", "Rows on the device.", lambda: sum(host.bank.num_resident for host in hosts))
    metrics.gauge("bank_bytes", "Bytes of the rows on the device.", lambda: bound.total)
    metrics.gauge("bank_bytes_limit", "What the rows may take.", lambda: bound.most)
    counts = catalog.directory.counts
    metrics.gauge("tasks", "Tasks.", lambda: counts()["tasks"])
    metrics.gauge("versions", "Versions of all tasks.", lambda: counts()["versions"])
    metrics.gauge("versions_unavailable", "Versions that could not be loaded.", lambda: counts()["unavailable"])
    position = catalog.directory.position
    metrics.gauge("feed_seq", "The registry's last change that is shown here.", lambda: position.seq)
    metrics.gauge("feed_age_seconds", "Time since the registry was last looked at.", lambda: follower.age)
    metrics.gauge("keys_age_seconds", "Time since the registry's keys were last seen.", lambda: key_poller.age)
    metrics.gauge("storage_ok", "Whether the disk took the last change.", lambda: catalog.storage == "ok")
