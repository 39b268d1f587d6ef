"""The composition root: every part of a server is made and joined here, and nowhere else."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI

from onebert_encoder.base import Base, load_base
from onebert_encoder.kernels.choose import answering_kernels
from onebert_encoder.precision import fast_dtype, trusted
from onebert_server import routes_classify, routes_system, routes_tasks
from onebert_server.admission import Admission
from onebert_server.answers import WORKERS, Answerer
from onebert_server.bank import Bank
from onebert_server.catalog import Catalog
from onebert_server.engine import Engine, EngineLimits
from onebert_server.front_ends import FrontEnds
from onebert_server.memory import give_back_freed_memory
from onebert_server.metrics import Metrics
from onebert_server.routing import Parts
from onebert_server.settings import Settings
from onebert_server.web import web_app
from onebert_store.errors import InvalidSettings
from onebert_store.registry import Registry

REGISTRARS = 4
# Seconds for the batch under way at the end: the requests themselves had `shutdown_timeout` before.
CLOSE_TIMEOUT = 5.0


def create_app(settings: Settings) -> FastAPI:
    """Loads the base and every stored version; the engine runs from the app's start-up to its shutdown.

    Raises:
        BaseNotFound, UnsupportedBase, InvalidSettings: the base or the device cannot be had.
        StoreLocked, StoreCorrupt, StorageFull: the data folder cannot be used.
    """
    return web_app(
        _assemble(settings),
        [routes_classify.router, routes_tasks.router, routes_system.router],
        api_keys=settings.api_keys,
        max_body_bytes=settings.max_body_bytes,
        receive_timeout=settings.receive_timeout,
        lifespan=_lifespan,
    )


def _assemble(settings: Settings) -> Parts:
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidSettings("ONEBERT_DEVICE: there is no CUDA device here")
    threads = settings.threads or torch.get_num_threads()
    # On a thread that ends and computes as the engine's will: so weights are packed, and kernels checked, for that.
    with ThreadPoolExecutor(1, "onebert-loader", torch.set_num_threads, (threads,)) as loader:
        base = loader.submit(_load, settings).result()
    # This thread computes alone from here on: see Engine.
    torch.set_num_threads(1)
    give_back_freed_memory()
    metrics = Metrics()
    bank = Bank(base)
    limits = EngineLimits(settings.max_batch_tokens, settings.max_queue_sequences, settings.max_queue_tokens)
    engine = Engine(base, bank, limits, metrics, threads)
    registry = Registry(settings.data_dir)
    catalog = Catalog(base, bank, engine, registry)
    catalog.load()
    admission = Admission(catalog.directory, engine)
    workers = ThreadPoolExecutor(WORKERS, "onebert-worker")
    _add_gauges(metrics, engine, bank, catalog)
    return Parts(
        settings=settings,
        base=base,
        engine=engine,
        registry=registry,
        catalog=catalog,
        admission=admission,
        front_ends=FrontEnds(settings, base.tokenizer, admission),
        answerer=Answerer(base.tokenizer, admission, workers),
        metrics=metrics,
        workers=workers,
        registrars=ThreadPoolExecutor(REGISTRARS, "onebert-registrar"),
        uploader=ThreadPoolExecutor(1, "onebert-uploader"),
    )


def _add_gauges(metrics: Metrics, engine: Engine, bank: Bank, catalog: Catalog) -> None:
    metrics.gauge("queue_sequences", "Sequences that wait.", lambda: engine.waiting_sequences)
    metrics.gauge("queue_tokens", "Tokens that wait.", lambda: engine.waiting_tokens)
    metrics.gauge("bank_rows", "Rows on the device.", lambda: bank.num_resident)
    metrics.gauge("bank_bytes", "Bytes of the rows on the device.", lambda: bank.num_bytes)
    counts = catalog.directory.counts
    metrics.gauge("tasks", "Tasks.", lambda: counts()["tasks"])
    metrics.gauge("versions", "Versions of all tasks.", lambda: counts()["versions"])
    metrics.gauge("versions_unavailable", "Versions that could not be loaded.", lambda: counts()["unavailable"])


def _load(settings: Settings) -> Base:
    auto = settings.dtype == "auto"
    dtype = fast_dtype(settings.device) if auto else getattr(torch, settings.dtype)
    base = load_base(settings.base, dtype=dtype, device=settings.device, batch_invariant=settings.batch_invariant)
    if auto or settings.dtype == "int8":
        base = trusted(base)
    if settings.batch_invariant and not answering_kernels(base).batch_invariant:
        raise InvalidSettings(
            "ONEBERT_BATCH_INVARIANT: plain PyTorch rounds differently from batch to batch; the fast kernels, which do"
            " not, need a C++ compiler (on a GPU Triton) and a base with GELU"
        )
    return base


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    parts.engine.start()
    try:
        yield
    finally:
        parts.draining = True
        # The engine first: an upload that waits for its golden logits then ends, and its thread with it.
        parts.engine.close(CLOSE_TIMEOUT)
        for threads in (parts.uploader, parts.registrars, parts.workers):
            threads.shutdown(cancel_futures=True)
        parts.registry.close()
