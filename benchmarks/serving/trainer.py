"""What a training beside the server costs the answers that clients wait for: an open loop without and with it.

    python benchmarks/serving/trainer.py [--rate 50] [--seconds 10] [--turns 3] [--base …]

Both take turns. The load is of single texts for random BitFit deltas, from a second process; the training is an
improvement of a task of two labels with eight examples each. The first line has the seconds from such examples to
their served version.
"""

import time
from functools import partial

from onebert_bench.load import Reply, Stream, run_open_load
from onebert_bench.machine import process
from onebert_bench.script import options
from onebert_bench.servers import TASKS, TEXTS, loaded, requests_for
from onebert_bench.sustained import latency_table
from onebert_bench.timing import in_turns
from onebert_bench.workload import sentences, task_delta
from onebert_encoder.base.base import load_base
from onebert_server.client import Client
from onebert_store.file.format import dumps

_EACH = 8


def main() -> None:
    """Prints the seconds of a new task, and a table of latencies."""
    asked = options(__doc__, rate=50, seconds=10, turns=3, base=None)
    base = load_base(asked.base)
    files = [dumps(task_delta(base, "bitfit", seed)) for seed in range(TASKS)]
    texts = sentences(base, TEXTS)
    with (
        loaded(files, base=asked.base, dtype="auto", trainer=True) as server,
        process() as sender,
        Client(server.url) as client,
    ):
        examples = [(f"{label} {text}", label) for label in ("one", "other") for text in texts[:_EACH]]
        client.create_from_examples("warm", examples)
        began = time.perf_counter()
        client.create_from_examples("new", examples[1:-1])
        print(f"{time.perf_counter() - began:.2f} s from {2 * _EACH - 2} examples to a served version")
        stream = Stream(requests_for(server.url, texts), asked.rate, 0.0, asked.seconds)

        def load(training: bool) -> list[Reply]:
            if training:
                client.create_from_examples("new", examples, improve=True)
            replies: list[Reply] = sender.submit(run_open_load, server.url, {"load": stream}).result()["load"]
            while training and client.improvement("new").state not in ("done", "failed"):
                time.sleep(1)
            return replies

        runs = {str(training): partial(load, training) for training in (False, True)}
        loads = in_turns(runs, asked.turns)
    print(f"{asked.rate} requests/s, {TASKS} tasks, {asked.turns} turns of {asked.seconds} s each")
    print(latency_table("training", loads))


if __name__ == "__main__":
    main()
