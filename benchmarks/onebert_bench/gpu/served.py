"""The section on a server process: requests over HTTP for many tasks, beside the engine at full batches."""

from functools import partial

import torch

from onebert_bench.gpu.answering import overlapping, recordings
from onebert_bench.gpu.made import Made, texts
from onebert_bench.numbers import percentile
from onebert_bench.report import Cell, Section
from onebert_bench.servers import TASKS, TEXTS, Serving, Traffic, bitfit_files, loaded, requests_for, several
from onebert_bench.timing import in_turns, row_ms
from onebert_bench.workload import MINILM, bank_of, sentence_lengths, sentences
from onebert_server.hosts import front_ends_for
from onebert_server.settings import Settings

_TRAFFIC = (Traffic(1), Traffic(64), Traffic(512), Traffic(64, texts=64))
# One process sends some ten thousand requests a second.
_SENDERS = 4


def served(made: Made) -> Section:
    """What clients of `onebert serve` see, by default and in one process; pushes compare answers with the trainer's."""
    base = made.base(MINILM, device="cpu")
    dtype = "float32" if made.device == "cpu" else "bfloat16"
    serving = Serving(str(made.base_folder(MINILM)), dtype, made.device)
    default = front_ends_for(Settings.model_construct(), torch.device(made.device))
    questions, seconds = sentences(base, TEXTS), 0.2 if made.tiny else 1.0
    rows: list[list[Cell]] = []
    full = full_rate(made)
    for fronts in dict.fromkeys((default, 0)):
        with loaded(bitfit_files(base), **vars(serving), front_ends=fronts) as server, several(_SENDERS) as send:
            requests = {traffic: requests_for(server.url, questions, traffic.texts) for traffic in _TRAFFIC}
            runs = {
                traffic: partial(send, server.url, requests[traffic], traffic.clients, seconds) for traffic in _TRAFFIC
            }
            for traffic, loads in in_turns(runs, made.count(2, 1)).items():
                rate = traffic.texts * sum(load.rate for load in loads) / len(loads)
                latencies = [value for load in loads for value in load.latencies_ms]
                p50, p99 = (percentile(latencies, share) if latencies else None for share in (0.5, 0.99))
                refused = sum(load.refused for load in loads)
                rows.append([fronts, traffic.clients, traffic.texts, rate, p50, p99, refused, rate / full])
    about = (
        f"`onebert serve` of MiniLM-L6 in bfloat16 with {default} front ends, the default here, and in one process; "
        f"{TASKS} BitFit tasks, closed loop. `share` is of the {full:,.0f} texts/s that the engine's passes compute of "
        "full batches of such texts and tasks alone, in a row."
    )
    header = ("front ends", "clients", "texts each", "texts/s", "p50 ms", "p99 ms", "refused", "share")
    return Section("Over HTTP", about, header, rows)


def full_rate(made: Made) -> float:
    """Texts a second of full batches of sentences for many tasks, by the engine's passes alone."""
    base, count = made.base(MINILM), made.count(256, 4)
    bank, slots = bank_of(base, "bitfit", TASKS)
    each = [slots[number % TASKS] for number in range(count)]
    with torch.inference_mode():
        step = overlapping(base, bank.rows, texts(base, sentence_lengths(count)), each, recordings(base))
        return 1e3 * count / row_ms(step, made.count(50, 2))
