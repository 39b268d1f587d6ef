"""Loads the engine alone with the same texts as a server, as many at a time, but tokenized already."""

import math
import threading
import time
from dataclasses import replace
from functools import cache

import torch

from onebert_bench.load import Load
from onebert_bench.workload import bitfit_delta, sentences, tokenized
from onebert_encoder.answering.scores import Logits
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.access.principal import root
from onebert_server.engine.bank import Bank
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.engine.queue import QueueLimits
from onebert_server.engine.request import Item
from onebert_server.runtime import MAX_BATCH_SECONDS
from onebert_server.settings import Settings

TASKS = 64
TEXTS = 256
# PyTorch's default; read before the thread that sends is told to compute with one.
ALL_THREADS = torch.get_num_threads()


def run_engine(name: str | None, dtype: str, device: str, threads: int | None, clients: int, seconds: float) -> Load:
    """A closed loop like `run_load`; runs in a process of its own, which it sets up like `onebert serve`."""
    engine, slots, inputs = _engine(name, dtype, device, threads or ALL_THREADS)
    latencies: list[float] = []
    started, cpu, left, done = time.perf_counter(), time.process_time(), clients, threading.Event()

    context = Context(root("load"), math.inf, time.monotonic(), "load")

    def send(turn: int) -> None:
        # A copy for each request, since requests over HTTP share no tokens either.
        item = Item(replace(inputs[turn * 7 % TEXTS]), slots[turn % TASKS])
        sent = time.perf_counter()
        engine.submit([item], context).add_done_callback(lambda future: answered(turn, sent, future.result()))

    def answered(turn: int, sent: float, _: list[Logits]) -> None:
        nonlocal left
        latencies.append((time.perf_counter() - sent) * 1e3)
        if time.perf_counter() < started + seconds:
            send(turn + 1)
        else:
            left -= 1
            if not left:
                done.set()

    for number in range(clients):
        send(number * 7)
    done.wait()
    return Load(latencies, 0, time.perf_counter() - started, time.process_time() - cpu)


@cache
def _engine(name: str | None, dtype: str, device: str, threads: int) -> tuple[Engine, list[int], list[Tokens]]:
    keep_freed_memory()
    torch.set_num_threads(1)
    base = load_base(name, dtype=getattr(torch, dtype), device=device)
    bank = Bank(base)
    with torch.inference_mode():
        deltas = [bitfit_delta(base, seed) for seed in range(TASKS)]
        slots = [bank.install(fold(base, to_tensors(delta, base), delta.manifest.pooling)) for delta in deltas]
    settings = Settings.model_construct()  # the defaults, whatever the environment says
    queue = QueueLimits(settings.max_queue_sequences, settings.max_queue_tokens, settings.max_queue_seconds)
    limits = EngineLimits(settings.max_batch_tokens, queue, MAX_BATCH_SECONDS)
    engine = Engine(base, bank, limits, threads=threads)
    engine.start()
    return engine, slots, tokenized(base, sentences(base, TEXTS))
