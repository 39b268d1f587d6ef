"""How long other replicas show the registry as it was, and what it costs to ask them not to.

    python benchmarks/scaling/staleness.py --registry postgresql://… [--replicas 3] [--moves 200] [--polling] [--base …]

Starts servers on one empty registry, moves an alias on one of them after the other, and asks all others where the alias
is until they say so: seconds from the answer to the move. Then the same for a read that sends the move's number, and
for moves that wait for all. With `--polling` nobody hears of a change: the connections that listen are cut before each
move, and the servers are still waiting to listen again when they look by themselves.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg

from onebert_bench.ranks import percentile
from onebert_bench.workload import bitfit_delta
from onebert_encoder.base.base import load_base
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.file.format import dumps

ALIAS = "/v1/tasks/task/aliases/live"
# The servers' connections that listen do nothing else.
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
CLASSIFY = "/v1/tasks/task/classify"


def main() -> None:
    """Starts the servers and prints what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", required=True)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--polling", action="store_true", help="without LISTEN and NOTIFY")
    parser.add_argument("--base")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onebert-staleness-") as folder, ExitStack() as stack:
        settings = {"registry": asked.registry, "threads": 1} | ({"base": asked.base} if asked.base else {})
        servers = [stack.enter_context(serving(Path(folder), **settings)) for _ in range(asked.replicas)]
        base = load_base(asked.base)
        with Client(servers[0].url) as client:
            for seed in (1, 2):
                client.push("task", dumps(bitfit_delta(base, seed)))
        webs = [stack.enter_context(httpx.Client(base_url=server.url, timeout=60)) for server in servers]
        pool = stack.enter_context(ThreadPoolExecutor(len(webs)))
        deaf = stack.enter_context(psycopg.connect(asked.registry, autocommit=True)) if asked.polling else None
        measure(Moves(webs, pool, deaf), asked.moves)


class Moves:
    """An alias that goes forth and back, each time through the next server."""

    def __init__(
        self, webs: Sequence[httpx.Client], pool: ThreadPoolExecutor, deaf: psycopg.Connection[Any] | None
    ) -> None:
        self.webs = webs
        self.pool = pool
        self.deaf = deaf
        self.at, self.moved = 1, 0

    def move(self, query: str = "") -> tuple[int, float, list[httpx.Client]]:
        """Moves it; gives the number of the change, the seconds that it took, and the other servers."""
        web, others = self.webs[self.moved % len(self.webs)], list(self.webs)
        others.remove(web)
        if self.deaf is not None:
            self.deaf.execute(CUT)
        started = time.perf_counter()
        answer = web.put(ALIAS + query, json={"version": 3 - self.at}, headers={"If-Match": f'"{self.at}"'})
        seconds = time.perf_counter() - started
        answer.raise_for_status()
        self.at, self.moved = 3 - self.at, self.moved + 1
        return int(answer.headers["OneBERT-Seq"]), seconds, others

    def until_shown(self, web: httpx.Client) -> float:
        """Seconds until a server shows where the alias is."""
        started = time.perf_counter()
        while web.get(ALIAS).json()["version"] != self.at:
            time.sleep(0.001)
        return time.perf_counter() - started

    def asked_for(self, web: httpx.Client, seq: int) -> float:
        """Seconds that a question takes which must not miss a move."""
        started = time.perf_counter()
        answer = web.post(CLASSIFY, json={"inputs": "a text"}, headers={"OneBERT-Min-Seq": str(seq)})
        seconds = time.perf_counter() - started
        if answer.json()["version"] != self.at:
            raise SystemExit("a question that sent the number was answered by the version before")
        return seconds


def measure(moves: Moves, count: int) -> None:
    """Prints a line for each thing measured."""
    stale, taken, asked, plain, all_of_them = [], [], [], [], []
    for number in range(count):
        # At every phase of the looks.
        time.sleep(0.05 + 0.5 * (number * 0.618 % 1.0))
        _, seconds, others = moves.move()
        taken.append(seconds)
        stale += moves.pool.map(moves.until_shown, others)
    for _ in range(count):
        seq, _, others = moves.move()
        asked += [moves.asked_for(web, seq) for web in others]
        plain += [moves.asked_for(web, seq) for web in others]
    for _ in range(count):
        _, seconds, _ = moves.move("?wait=all")
        all_of_them.append(seconds)
    for what, seconds in (
        ("a move is answered after", taken),
        ("another replica shows it, from the answer on, after", stale),
        ("a question with the move's number is answered by another replica after", asked),
        ("the same once it shows the move", plain),
        ("a move with ?wait=all is answered after", all_of_them),
    ):
        p50, p99 = (1e3 * percentile(seconds, share) for share in (0.5, 0.99))
        print(f"{what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, at most {1e3 * max(seconds):.1f} ms ({len(seconds)})")


if __name__ == "__main__":
    main()
