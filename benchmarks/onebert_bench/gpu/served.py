"""The section on a server process: requests over HTTP for many tasks, beside the engine alone."""

from onebert_bench.gpu.made import Made
from onebert_bench.numbers import percentile
from onebert_bench.report import Cell, Section
from onebert_bench.servers import TASKS, Serving, Traffic, measure_served
from onebert_bench.workload import MINILM

_TRAFFIC = (Traffic(1), Traffic(64), Traffic(16, texts=64))


def served(made: Made) -> Section:
    """What clients of `onebert serve` see, whose pushes also compare the server's answers with the trainer's."""
    base = made.base(MINILM, device="cpu")
    serving = Serving(str(made.base_folder(MINILM)), "bfloat16" if made.device != "cpu" else "float32", made.device)
    found = measure_served(serving, base, (0,), _TRAFFIC, made.count(2, 1), 0.2 if made.tiny else 1.0)
    rows: list[list[Cell]] = []
    for one in _TRAFFIC:
        loads = found.loads[one, 0]
        latencies = [value for load in loads for value in load.latencies_ms]
        rate = one.texts * sum(load.rate for load in loads) / len(loads)
        alone = found.loads.get((one, None), [])
        engine = sum(load.rate for load in alone) / len(alone) if alone else None
        share = rate / engine if engine else None
        refused = sum(load.refused for load in loads)
        quantiles = (percentile(latencies, 0.5), percentile(latencies, 0.99))
        rows.append([one.clients, one.texts, rate, *quantiles, refused, engine, share])
    about = f"One `onebert serve` of MiniLM-L6 in bfloat16, {TASKS} BitFit tasks, closed loop; beside the engine alone."
    header = ("clients", "texts each", "texts/s", "p50 ms", "p99 ms", "refused", "engine alone, texts/s", "share")
    return Section("Over HTTP", about, header, rows)
