"""How long servers of one registry show it as it was: moves of an alias, and keys that were made or revoked.

    python benchmarks/scaling/staleness.py --registry postgresql://… [--replicas 3] [--moves 200] [--polling] [--base …]
    python benchmarks/scaling/staleness.py --registry postgresql://… --keys 25 [--base …]

Starts servers on one empty registry, moves an alias on one of them after the other, and asks all others where the alias
is until they say so: seconds from the answer to the move. Then the same for a read that sends the move's number, and
for moves that wait for all. With `--polling` nobody hears of a change: the connections that listen are cut before each
move, and the servers are still waiting to listen again when they look by themselves.

With `--keys` there are two servers, one process and one with two front ends. Each key is made and revoked on one of
them, in turn, and tried on both by one connection after the other, so that every front end is met: seconds from the
answer to the revocation until the last answer to the key. The same for a key that is made, until the last refusal.
"""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import psycopg

from onebert_bench.numbers import percentile
from onebert_bench.script import options
from onebert_bench.workload import bitfit_delta
from onebert_encoder.base.base import load_base
from onebert_server.access.key_keeper import EVERY
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.file.format import dumps

ROOT = "the-key-of-the-environment"
LAYOUTS = {"one process": 0, "two front ends": 2}
# Answers of one kind in a row after which no front end gives another: each takes every second connection, by chance.
IN_A_ROW = 30
ALIAS = "/v1/tasks/task/aliases/live"
CLASSIFY = "/v1/tasks/task/classify"
# The servers' connections that listen do nothing else.
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"


def main() -> None:
    """Starts the servers and prints what was seen."""
    asked = options(__doc__, registry=str, replicas=3, moves=200, polling=False, keys=0, base=None)
    front_ends = list(LAYOUTS.values()) if asked.keys else [0] * asked.replicas
    with tempfile.TemporaryDirectory(prefix="onebert-staleness-") as folder, ExitStack() as stack:
        settings = {"registry": asked.registry, "threads": 1, "api_keys": ROOT, "base": asked.base}
        urls = [stack.enter_context(serving(Path(folder), **settings, front_ends=number)).url for number in front_ends]
        admins = [stack.enter_context(Client(url, ROOT)) for url in urls]
        base = load_base(asked.base)
        for seed in (1, 2):
            admins[0].push("task", dumps(bitfit_delta(base, seed)))
        pool = stack.enter_context(ThreadPoolExecutor(len(urls)))
        if asked.keys:
            report(keys_tried(admins, urls, pool, asked.keys))
            return
        headers = {"Authorization": f"Bearer {ROOT}"}
        webs = [stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60)) for url in urls]
        deaf = stack.enter_context(psycopg.connect(asked.registry, autocommit=True)) if asked.polling else None
        report(alias_moved(Moves(webs, pool, deaf), asked.moves))


def report(seen: dict[str, list[float]]) -> None:
    """Prints a line for each thing measured, in seconds."""
    for what, seconds in seen.items():
        p50, p99 = (1e3 * percentile(seconds, share) for share in (0.5, 0.99))
        print(f"{what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, at most {1e3 * max(seconds):.1f} ms ({len(seconds)})")


def at_any_phase(number: int, every: float) -> None:
    """Waits for a part of the time between two looks of a server, each time for another."""
    time.sleep(every * (number * 0.618 % 1.0))


class Moves:
    """An alias that goes forth and back, each time through the next server."""

    def __init__(
        self, webs: Sequence[httpx.Client], pool: ThreadPoolExecutor, deaf: psycopg.Connection[Any] | None
    ) -> None:
        self.webs, self.pool, self.deaf = webs, pool, deaf
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


def alias_moved(moves: Moves, count: int) -> dict[str, list[float]]:
    """Seconds of everything measured."""
    stale, taken, asked, plain, all_of_them = [], [], [], [], []
    for number in range(count):
        time.sleep(0.05)
        at_any_phase(number, 0.5)
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
    return {
        "a move is answered after": taken,
        "another replica shows it, from the answer on, after": stale,
        "a question with the move's number is answered by another replica after": asked,
        "the same once it shows the move": plain,
        "a move with ?wait=all is answered after": all_of_them,
    }


def keys_tried(
    admins: Sequence[Client], urls: Sequence[str], pool: ThreadPoolExecutor, count: int
) -> dict[str, list[float]]:
    """Seconds of everything measured, apart by the server that was asked to make or revoke the key."""
    seen: dict[str, list[float]] = {}

    def note(what: str, by: int, key: str, taken: bool) -> None:
        for at, seconds in enumerate(pool.map(settled, urls, repeat(key), repeat(taken))):
            where = "the server that was asked" if at == by else "the other server"
            seen.setdefault(f"{what}, {where} ({list(LAYOUTS)[at]})", []).append(seconds)

    for number in range(count):
        by = number % len(admins)
        at_any_phase(number, EVERY)
        made = admins[by].create_key("app", ["classify"], ["*"])
        note("a key that was made", by, made.key, True)
        at_any_phase(number, EVERY)
        admins[by].revoke_key(made.id)
        note("a key that was revoked", by, made.key, False)
    return dict(sorted(seen.items()))


def settled(url: str, key: str, wanted: bool) -> float:
    """Seconds until the last answer that does not yet take, or still takes, a key."""
    started, last, in_a_row = time.perf_counter(), 0.0, 0
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as web:
        while in_a_row < IN_A_ROW:
            status = web.post(CLASSIFY, json={"inputs": "a text"}).status_code
            if status not in (200, 401, 429):
                raise SystemExit(f"a question was answered with {status}")
            in_a_row += 1
            if (status == 200) is not wanted:
                last, in_a_row = time.perf_counter() - started, 0
            time.sleep(0.005)
    return last


if __name__ == "__main__":
    main()
