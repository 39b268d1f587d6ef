"""How long a key that was revoked on one server is still taken by it and by others of the same registry.

    python benchmarks/scaling/revocation.py --registry postgresql://… [--keys 25] [--base …]

Starts two servers on one empty registry, one process and one with two front ends. Each key is made and revoked on one
of them, in turn, and tried on both by one connection after the other, so that every front end is met: seconds from
the answer to the revocation until the last answer to the key. The same for a key that is made, until the last refusal.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path

import httpx

from onebert_bench.ranks import percentile
from onebert_bench.workload import bitfit_delta
from onebert_encoder.base.base import load_base
from onebert_server.access.key_keeper import EVERY
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.file.format import dumps

ROOT = "the-key-of-the-environment"
FRONT_ENDS = (0, 2)
LAYOUTS = ("one process", "two front ends")
# Answers of one kind in a row after which no front end gives another: each takes every second connection, by chance.
IN_A_ROW = 30


def main() -> None:
    """Starts the servers and prints what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", required=True)
    parser.add_argument("--keys", type=int, default=25)
    parser.add_argument("--base")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onebert-revocation-") as folder, ExitStack() as stack:
        settings = {"registry": asked.registry, "threads": 1, "api_keys": ROOT, "base": asked.base}
        servers = [
            stack.enter_context(serving(Path(folder), **settings, front_ends=number)).url for number in FRONT_ENDS
        ]
        admins = [stack.enter_context(Client(url, ROOT)) for url in servers]
        admins[0].push("task", dumps(bitfit_delta(load_base(asked.base), 1)))
        measure(admins, servers, asked.keys)


def measure(admins: Sequence[Client], servers: Sequence[str], count: int) -> None:
    """Prints a line for each thing measured."""
    seen: dict[str, list[float]] = {}
    with ThreadPoolExecutor(len(servers)) as pool:
        for number in range(count):
            by = number % len(admins)
            at_any_phase(number)
            made = admins[by].create_key("app", ["classify"], ["*"])
            note(seen, "a key that was made", by, pool.map(settled, servers, repeat(made.key), repeat(True)))
            at_any_phase(number)
            admins[by].revoke_key(made.id)
            note(seen, "a key that was revoked", by, pool.map(settled, servers, repeat(made.key), repeat(False)))
    for what, seconds in sorted(seen.items()):
        p50, p99 = (percentile(seconds, share) for share in (0.5, 0.99))
        print(f"{what}: p50 {p50:.2f} s, p99 {p99:.2f} s, at most {max(seconds):.2f} s ({len(seconds)})")


def at_any_phase(number: int) -> None:
    """Waits for a part of the time between two looks of a server, each time for another."""
    time.sleep(EVERY * (number * 0.618 % 1.0))


def note(seen: dict[str, list[float]], what: str, by: int, seconds: Iterable[float]) -> None:
    """Keeps what the servers took, apart by which of them was asked to make or revoke the key."""
    for at, found in enumerate(seconds):
        where = "the server that was asked" if at == by else "the other server"
        seen.setdefault(f"{what}, {where} ({LAYOUTS[at]})", []).append(found)


def settled(url: str, key: str, wanted: bool) -> float:
    """Seconds until the last answer that does not yet take, or still takes, a key."""
    started, last, in_a_row = time.perf_counter(), 0.0, 0
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as web:
        while in_a_row < IN_A_ROW:
            status = web.post("/v1/tasks/task/classify", json={"inputs": "a text"}).status_code
            if status not in (200, 401, 429):
                raise SystemExit(f"a question was answered with {status}")
            in_a_row += 1
            if (status == 200) is not wanted:
                last, in_a_row = time.perf_counter() - started, 0
            time.sleep(0.005)
    return last


if __name__ == "__main__":
    main()
