"""A running engine with tasks, and answerers on it: in its own process, and on the other side of the wire."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from threading import Event
from types import SimpleNamespace

import numpy as np
import torch

from bases import far_delta
from batches import logits_of, packed
from directories import publish, retire
from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.asked import PLAIN
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from onebert_server.access.context import Context
from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import root
from onebert_server.answering.admission import Admission
from onebert_server.answering.answers import Answerer
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import Reading
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import Host
from onebert_server.engine.queue import QueueLimits
from onebert_server.facades.facade import Call
from onebert_server.telemetry.metrics import Metrics
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import Version
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.records import VersionRecord
from remote_engine import remote_engine
from tiny_delta import manifest_dict

TASKS = {
    "good": {},
    "bad": {},  # whose answers are NaN
    "short": {"max_length": 6},
    "tags": {"task_type": "token", "pooling": "none"},
    "spans": {"task_type": "span", "pooling": "none", "labels": ["start", "end"]},
}


class Batches(Metrics):
    """Counts what is computed, and holds the engine's thread after a batch unless it is `opened`."""

    def __init__(self):
        super().__init__()
        self.sequences = []
        self.entered, self.opened = Event(), Event()
        self.opened.set()

    def observe_batch(self, sequences, tokens, seconds):
        self.sequences.append(sequences)
        self.entered.set()
        self.opened.wait(180)


class Parts:
    """A running engine with the tasks above, and answerers on it; leaving `with` ends it."""

    def __init__(self, base, path, remote, others=()):
        self.base, self.path, self.remote = base, path, remote
        self.host = Host(base, Bank(base))
        self.bank, self.batches = self.host.bank, Batches()
        hosts = [self.host, *(Host(other, Bank(other, self.bank.bound)) for other in others)]
        self.engine = Engine(hosts, EngineLimits(512, QueueLimits(4096, 2**19)), self.batches)
        # Everything is in memory from the start: there is nothing to load.
        self.residents = Residents(self.engine, registry=None)
        self.directory = self.residents.directory
        self.rows = {}
        for name, manifest in TASKS.items():
            self.add(name, bias=np.nan if name == "bad" else 1.0, **manifest)
        # The hook that lets answers be chosen.
        self.sampled = [lambda *_: None]
        self.engine.start()
        self.workers = ThreadPoolExecutor(1)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.batches.opened.set()
        self.engine.close(60)
        self.workers.shutdown()

    def add(self, name, version=1, bias=1.0, seed=1, base=None, **manifest):
        base = base or self.base
        host = self.engine.hosts[base.spec.digest]
        named = {"name": base.spec.name, "model_type": "bert", "digest": host.digest}
        manifest = parse_manifest(manifest_dict(base=named, **manifest))
        tensors = far_delta(base.spec, "bitfit", manifest.pooling, len(manifest.labels), seed)
        tensors["head.bias"][:] = bias
        row = fold(base, {n: torch.from_numpy(v) for n, v in tensors.items()}, manifest.pooling)
        record = VersionRecord(name, version, f"digest {name} {version} {seed}", 1, datetime.now(UTC), manifest)
        self.rows[name, version] = manifest, row
        publish(self.directory, Version(record, host.install(row)), live=version)

    @asynccontextmanager
    async def answerer(self):
        """One that asks the engine itself, or one on the other side of a socket, with its desk."""
        admission = Admission(self.engine, self.residents, sampled=self.sampled)
        make = partial(Answerer, admission.splitters, workers=self.workers)
        if not self.remote:
            yield make(gateway=admission)
            return
        async with remote_engine(admission, KeyRing({}), self.path) as (self.gateway, _, self.transport, self.desk):
            yield make(gateway=self.gateway)

    def run(self, ask, loop_factory=None):
        """Awaits `ask` of an answerer, on an event loop of its own."""

        async def one():
            async with self.answerer() as answerer:
                return await ask(answerer)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(one())

    def answer(self, refs, texts, **wanted):
        return self.run(lambda answerer: answerer.answer(context(), Wanted(refs, **wanted), texts, same))

    def call(self, answer, body=None, task="wide", seconds=60):
        """Awaits a façade's function of a call that is of use for so long."""

        def ask(answerer):
            edge = SimpleNamespace(answerer=answerer)
            return answer(Call(body, {"task": task}, [], context(seconds=seconds), edge))

        return self.run(ask)

    def alone(self, ref, text, asked=PLAIN):
        """The answer by the encoder, without a server."""
        name, _, version = ref.partition("@")
        manifest, row = self.rows[name, int(version or 1)]
        base = self.engine.hosts[manifest.base.digest].base
        (tokens,) = base.tokenizer.encode([text], manifest.max_length, align=manifest.per_token)
        (logits,) = self.logits(row, [tokens], base)
        return answer(logits, manifest, text, tokens.alignment, asked), len(tokens), tokens.truncated

    def logits(self, row, tokens, base=None):
        base = base or self.base
        with torch.inference_mode():
            batch = packed(base, tokens, [0] * len(tokens))
            return [logits.numpy() for logits in logits_of(base, stack_rows(base, [row]), batch)]

    def unpinned(self):
        """Whether nobody holds a version: then its row leaves the bank with it."""
        for name, version in self.rows:
            retire(self.directory, name, version)
        return self.bank.num_resident == 0


def same(_, answered):
    """Shows an answer as it is."""
    return answered


def context(principal: str = "somebody", seconds: float = 60.0, min_seq: int = 0) -> Context:
    """Of a request that is of use for so long from now on."""
    now = time.monotonic()
    return Context(root(principal), now + seconds, now, "an-id", min_seq)


def assert_like(answered, expected):
    """Labels and spans the same, scores up to rounding."""
    result, tokens, truncated = expected
    assert isinstance(answered.reading, Reading)
    assert (answered.reading.tokens, answered.reading.truncated) == (tokens, truncated)
    here, there = (torch.tensor(_scores(answer)) for answer in (answered.reading.answer, result))
    torch.testing.assert_close(here, there, atol=1e-5, rtol=0)


def _scores(result):
    for name in ("words", "answers"):
        if hasattr(result, name):
            return [part.score for part in getattr(result, name)]
    return result.scores
