"""What one key's explanations, or LiteLLM's 1,024 texts, cost another key's short texts: alone and beside, in turns.

    python benchmarks/serving/neighbours.py [--rate 20] [--explained 2] [--checked 0.3] [--seconds 20] [--turns 3]
        [--dtype float32] [--front-ends 0] [--same] [--base …]

The neighbour sends single sentences. Beside them come, so many times a second, requests that explain 16 sentences each,
or LiteLLM's with 1,024 texts of 900 characters: more than two cores answer. All come at random moments, from processes
of their own. With `--same` all have one key. The last column is the neighbour's p99, against its p99 alone.
"""

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial

from onebert_bench.load import Reply, Request, Stream, run_open_load
from onebert_bench.machine import conditions, process
from onebert_bench.numbers import percentile
from onebert_bench.report import markdown_table
from onebert_bench.script import options
from onebert_bench.servers import TEXTS, bitfit_files, loaded, requests_for
from onebert_bench.timing import in_turns
from onebert_bench.workload import LABELS, sentences, task_delta
from onebert_encoder.base.base import load_base
from onebert_server.client import Client
from onebert_store.file.format import dumps

KEYS = {"large": "key-of-large-requests", "other": "key-of-the-neighbour"}
EXPLAINED, CHECKED, CHARACTERS = 16, 1024, 900


def main() -> None:
    """Prints the neighbour's latencies, and how many large requests were answered meanwhile."""
    rates = {"rate": 20.0, "explained": 2.0, "checked": 0.3}
    asked = options(__doc__, **rates, seconds=20.0, turns=3, dtype="float32", front_ends=0, same=False, base=None)
    base = load_base(asked.base)
    texts = sentences(base, TEXTS)
    settings = {"base": asked.base, "dtype": asked.dtype, "front_ends": asked.front_ends}
    keys = ",".join(KEYS.values())
    with (
        loaded(bitfit_files(base), KEYS["other"], api_keys=keys, **settings) as server,
        process() as sender,
        process() as beside,
    ):
        judge = task_delta(base, "bitfit", 0).with_manifest(format=2, decision={"positives": [LABELS[1]]})
        with Client(server.url, KEYS["other"]) as client:
            client.push("judge", dumps(judge))
        key = KEYS["large" if asked.same else "other"]
        probe = requests_for(server.url, texts, headers={"Authorization": f"Bearer {key}"})

        def stream(requests: Sequence[bytes], rate: float) -> dict[str, Stream]:
            return {"sent": Stream(requests, rate, 0.0, asked.seconds, by_chance=True)}

        def load(requests: Sequence[bytes], rate: float) -> tuple[list[Reply], list[Reply]]:
            large = beside.submit(run_open_load, server.url, stream(requests, rate))
            replies = sender.submit(run_open_load, server.url, stream(probe, asked.rate)).result()
            return replies["sent"], large.result()["sent"]

        runs = {
            "alone": partial(load, [], 0.0),
            "beside explanations": partial(load, explained(server.url, texts), asked.explained),
            "beside LiteLLM's texts": partial(load, checked(server.url, texts), asked.checked),
        }
        replies_by_load = in_turns(runs, asked.turns)
    rows, alone = [], 0.0
    for name, turns in replies_by_load.items():
        latencies = [1e3 * reply.seconds for replies, _ in turns for reply in replies if reply.status == 200]
        statuses = [Counter(reply.status for turn in turns for reply in turn[place]) for place in (0, 1)]
        p50, p99 = (percentile(latencies, share) for share in (0.5, 0.99))
        alone = alone or p99
        rows.append((name, f"{p50:.1f}", f"{p99:.1f}", *map(said, statuses), f"{p99 / alone:.1f}"))
    print(markdown_table(["", "p50 ms", "p99 ms", "answers", "of large requests", "p99 to alone"], rows))
    print(f"\n{asked.rate:g} requests/s, {asked.turns} turns of {asked.seconds:g} s each, {conditions()}.")


def said(statuses: Counter[int]) -> str:
    """How requests were answered."""
    return ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items())) or "none"


def explained(url: str, texts: Sequence[str]) -> list[bytes]:
    """Requests that explain sixteen sentences each."""
    parts = [texts[start : start + EXPLAINED] for start in range(0, len(texts), EXPLAINED)]
    bodies = [{"inputs": part, "explain": True} for part in parts]
    return [_large("/v1/tasks/task-0/classify", body).encode(url) for body in bodies]


def checked(url: str, texts: Sequence[str]) -> list[bytes]:
    """A request of LiteLLM's guardrail with as many texts as it takes, no two of them equal."""
    long = " ".join(texts)
    each = [f"{number} {long[number:]}"[:CHARACTERS] for number in range(CHECKED)]
    body = {"input_type": "request", "texts": each, "additional_provider_specific_params": {"tasks": ["judge"]}}
    return [_large("/beta/litellm_basic_guardrail_api", body).encode(url)]


def _large(path: str, body: object) -> Request:
    return Request(path, json.dumps(body), {"Authorization": f"Bearer {KEYS['large']}"})


if __name__ == "__main__":
    main()
