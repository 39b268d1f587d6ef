"""Sections on whole processes: training, and serving over HTTP with front ends beside a GPU."""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median

from onebert_bench.gpu.made import BASES, Made
from onebert_bench.load import run_load
from onebert_bench.numbers import percentile
from onebert_bench.report import Cell, Goal, Section
from onebert_bench.servers import TEXTS, bitfit_files, loaded, requests_for
from onebert_bench.timing import step_ms
from onebert_bench.training import made_up
from onebert_bench.workload import BERT_BASE, MINILM, sentences
from onebert_encoder.base.base import load_base
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import take_step
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State

_WIDTHS = (1, 2, 4, 8, 16, 32)


def training(made: Made) -> Section:
    """Many runs in one batch against one: BitFit and LoRA, with 16 sentences for each run and step."""
    rows: list[list[Cell]] = []
    goals = []
    for name in BASES:
        base = made.base(name)
        inputs = TaskInputs(base, made_up(base, 400), 128)
        for method in ("bitfit", "lora:r=8"):
            one = 0.0
            for width in _WIDTHS[: made.count(len(_WIDTHS), 2)]:
                runs = [Run(inputs, Settings(method=method, seed=seed, epochs=1000), "x") for seed in range(width)]
                pairs = [(run, State(run.init_values())) for run in runs]
                taken = median(step_ms(partial(take_step, pairs), made.count(8, 1)))
                one = one or taken
                rows.append([name, f"`{method}`", width, taken, taken / one, width * one / taken])
                if (name, method, width) == (BERT_BASE, "bitfit", 16):
                    goals.append(Goal("16 runs in one batch, times of one", "bfloat16", BERT_BASE, taken / one, 3))
    about = "Made-up sentences of 24 tokens on average, 16 for each run and step; bfloat16, dropout as the base has it."
    header = ("base", "method", "runs in a batch", "ms a step", "times of one", "runs a second, of one alone")
    return Section("Training", about, header, rows, goals)


def http(made: Made) -> Section:
    """MiniLM-L6's shape, 64 BitFit tasks, one text a request, as many front ends as there are cores to spare."""
    cores = os.cpu_count() or 1
    most = max(1, cores - 5)
    # Front ends, processes that send, clients of each.
    layouts = [(1, 1, 2)] if made.tiny else [(0, 1, 1), (0, 2, 64), (most // 2, 3, 128), (most, 4, 128)]
    folder = made.base_folder(MINILM)
    base, dtype = load_base(str(folder)), "bfloat16" if made.device != "cpu" else "float32"
    rows: list[list[Cell]] = []
    best = 0.0
    for front_ends, senders, clients in layouts:
        with (
            loaded(bitfit_files(base), base=folder, dtype=dtype, device=made.device, front_ends=front_ends) as server,
            ProcessPoolExecutor(senders, get_context("spawn")) as pool,
        ):
            requests = requests_for(server.url, sentences(base, TEXTS))
            for seconds in (0.3, 0.3) if made.tiny else (1.0, 4.0):  # the first one warms up
                sent = [pool.submit(run_load, server.url, requests, clients, seconds) for _ in range(senders)]
                loads = [one.result() for one in sent]
        rate = sum(load.rate for load in loads)
        latencies = [value for load in loads for value in load.latencies_ms]
        used = sum(load.cpu_seconds / load.seconds for load in loads)
        p50, p99 = (percentile(latencies, share) if latencies else None for share in (0.5, 0.99))
        refused = sum(load.refused for load in loads)
        rows.append([front_ends, senders * clients, rate, p50, p99, refused, used])
        best = max(best, rate)
    on = f"{MINILM}, {cores} cores"
    goals = [Goal("single texts a second over HTTP", dtype, on, best, 20_000, at_least=True)]
    header = ("front ends", "clients", "texts/s", "p50 ms", "p99 ms", "refused", "cores of the clients")
    about = f"One text a request, closed loop, 64 tasks; the clients take their share of the {cores} cores."
    return Section("HTTP", about, header, rows, goals)
