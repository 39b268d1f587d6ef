"""What shadows cost the answers that clients wait for: an open loop without and with them, in turns on one server.

    python benchmarks/serving/shadows.py [--rate 100] [--shadows 2] [--seconds 10] [--turns 6] [--base …]

Every task has a live version and the shadows, random BitFit deltas; a request has one text. The load comes from a
second process.
"""

from collections.abc import Sequence
from functools import partial

from onebert_bench.load import Reply, Stream, run_open_load
from onebert_bench.machine import process
from onebert_bench.numbers import percentile
from onebert_bench.report import markdown_table
from onebert_bench.script import options
from onebert_bench.servers import TASKS, TEXTS, loaded, push_tasks, requests_for
from onebert_bench.timing import in_turns
from onebert_bench.workload import sentences, task_delta
from onebert_encoder.base.base import load_base
from onebert_server.client import Client, ShadowShare, TargetFacts
from onebert_store.file.format import dumps

_NAMES = [f"task-{number}" for number in range(TASKS)]


def main() -> None:
    """Prints a table of latencies, and how many questions the shadows answered."""
    asked = options(__doc__, rate=100, shadows=2, seconds=10, turns=6, base=None)
    base = load_base(asked.base)
    versions = [
        [dumps(task_delta(base, "bitfit", TASKS * version + seed)) for seed in range(TASKS)]
        for version in range(asked.shadows + 1)
    ]
    with (
        loaded(versions[0], base=asked.base, dtype="auto") as server,
        process() as sender,
        Client(server.url) as client,
    ):
        for files in versions[1:]:
            push_tasks(server.url, files)
        stream = Stream(requests_for(server.url, sentences(base, TEXTS)), asked.rate, 0.0, asked.seconds)

        def load(shadows: int) -> list[Reply]:
            shares = [ShadowShare(2 + number) for number in range(shadows)]
            for name in _NAMES:
                place = client.alias(name, "live")
                to = TargetFacts({"1": 100}, shadow=shares) if shares else 1
                client.move_alias(name, "live", to, place.target.tag if place.target else place.version)
            replies: list[Reply] = sender.submit(run_open_load, server.url, {"load": stream}).result()["load"]
            return replies

        runs = {shadows: partial(load, shadows) for shadows in (0, asked.shadows)}
        found = {key: [one for turn in turns for one in turn] for key, turns in in_turns(runs, asked.turns).items()}
        load(asked.shadows)
        agreements = [one for name in _NAMES for one in client.shadows(name, "live")]
    print(f"{asked.rate} requests/s, {TASKS} tasks, {asked.turns} turns of {asked.seconds} s each")
    rows = [[str(key), *(f"{_ms(replies, share):.2f}" for share in (0.5, 0.9, 0.99))] for key, replies in found.items()]
    print(markdown_table(["shadows", "p50 ms", "p90 ms", "p99 ms"], rows))
    answers, left_out = sum(one.answers for one in agreements), sum(one.left_out for one in agreements)
    print(f"shadows answered {answers:,} questions and left {left_out:,} out")


def _ms(replies: Sequence[Reply], share: float) -> float:
    return percentile([1e3 * reply.seconds for reply in replies if reply.status == 200], share)


if __name__ == "__main__":
    main()
