"""What a task's whole life costs the answers that clients wait for: an open loop without and with it, in turns.

    python benchmarks/serving/shadows.py [--rate 100] [--shadows 2] [--feedback 2] [--seconds 10] [--turns 6] [--base …]

Every task has a live version and the shadows, random BitFit deltas; a request has one text. One server has nothing
else; in the other every version is watched, every answer is kept, and feedback comes by text, so many times a second.
Requests and feedback come at random moments, from a process of its own.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np
from cryptography.fernet import Fernet

from onebert_bench.load import Reply, Request, Stream, run_open_load
from onebert_bench.machine import process
from onebert_bench.script import options
from onebert_bench.servers import TASKS, TEXTS, loaded, push_tasks, requests_for
from onebert_bench.sustained import latency_table
from onebert_bench.timing import in_turns
from onebert_bench.workload import LABELS, sentences, task_delta
from onebert_encoder.base.base import Base, load_base
from onebert_server.client import Client, ShadowShare, TargetFacts
from onebert_store.file.format import dumps
from onebert_training.fit.reference import reference_of, with_reference

_NAMES = [f"task-{number}" for number in range(TASKS)]


def main() -> None:
    """Prints a table of latencies, and how many questions the shadows answered."""
    asked = options(__doc__, rate=100, shadows=2, feedback=2, seconds=10, turns=6, base=None)
    base = load_base(asked.base)
    versions = [[_file(base, TASKS * version + seed) for seed in range(TASKS)] for version in range(asked.shadows + 1)]
    texts = sentences(base, TEXTS)
    with ExitStack() as opened:
        sender = opened.enter_context(process())
        common = {"base": asked.base, "dtype": "auto"}
        plain = opened.enter_context(loaded(versions[0], **common, false_alarms=0))
        whole = opened.enter_context(loaded(versions[0], **common, samples_key=Fernet.generate_key().decode()))
        for server in (plain, whole):
            for files in versions[1:]:
                push_tasks(server.url, files)

        def load(url: str, shadows: int, feedback: int = 0) -> list[Reply]:
            with Client(url) as client:
                for name in _NAMES:
                    _set_shadows(client, name, shadows)
            streams = {"load": Stream(requests_for(url, texts), asked.rate, 0.0, asked.seconds, by_chance=True)}
            if feedback:
                streams["feedback"] = Stream(_feedback(url, texts), feedback, 0.0, asked.seconds, by_chance=True)
            replies = sender.submit(run_open_load, url, streams).result()
            failed = sum(one.status >= 400 for one in replies.get("feedback", ()))
            if failed:
                raise SystemExit(f"{failed} of the requests with feedback failed")
            found: list[Reply] = replies["load"]
            return found

        with Client(whole.url) as client:
            for name in _NAMES:
                client.set_samples(name, 1.0)
        runs = {
            "nothing else": partial(load, plain.url, 0),
            f"{asked.shadows} shadows": partial(load, plain.url, asked.shadows),
            f"{asked.shadows} shadows, watched, kept, feedback": partial(
                load, whole.url, asked.shadows, asked.feedback
            ),
        }
        loads = in_turns(runs, asked.turns)
        with Client(whole.url) as client:
            agreements = [one for name in _NAMES for one in client.shadows(name, "live")]
    print(f"{asked.rate} requests/s, {TASKS} tasks, {asked.turns} turns of {asked.seconds} s each")
    print(latency_table("beside", loads))
    answers, left_out = sum(one.answers for one in agreements), sum(one.left_out for one in agreements)
    print(f"shadows answered {answers:,} questions and left {left_out:,} out, beside feedback")


def _file(base: Base, seed: int) -> bytes:
    """A random task with a reference, also of random answers."""
    delta, random = task_delta(base, "bitfit", seed), np.random.default_rng(seed)
    logits, gold = random.normal(size=(300, len(LABELS))), random.integers(len(LABELS), size=300)
    return dumps(with_reference(delta, reference_of(delta.manifest, list(logits), gold, "validation", [])))


def _set_shadows(client: Client, name: str, shadows: int) -> None:
    place = client.alias(name, "live")
    shares = [ShadowShare(2 + number) for number in range(shadows)]
    to = TargetFacts({"1": 100}, shadow=shares) if shares else 1
    client.move_alias(name, "live", to, place.target.tag if place.target else place.version)


def _feedback(url: str, texts: Sequence[str]) -> list[bytes]:
    bodies = (
        {"data": [{"task": _NAMES[turn % TASKS], "text": text, "label": LABELS[turn % len(LABELS)]}]}
        for turn, text in enumerate(texts)
    )
    return [Request("/v1/feedback", json.dumps(body), {}).encode(url) for body in bodies]


if __name__ == "__main__":
    main()
