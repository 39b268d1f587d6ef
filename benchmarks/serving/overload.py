"""Measures overload for benchmarks/results/overload.md: an open loop at ten times what the server can do.

python benchmarks/serving/overload.py [--base NAME] [--dtype float32] [--front-ends 0] [--seconds 30] [--times 10]
    [--write]

One request holds 16 sentences for 16 of 64 tasks. `--write` puts the table into that page. The sender has a
process of its own on the same machine, and takes its share of it.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from onebert_bench.engine_load import TASKS
from onebert_bench.http_load import push_tasks
from onebert_bench.load import Load, Request, run_load
from onebert_bench.open_load import LEFT, Reply, Stream, run_open_load
from onebert_bench.pages import markdown_table, write_section
from onebert_bench.processes import memory_bytes
from onebert_bench.ranks import percentile
from onebert_bench.workload import sentences
from onebert_encoder.base.base import load_base
from onebert_server.process import ChildServer, serving

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "overload.md"
TEXTS_EACH = 16
# Clients of the closed loop that finds the peak: enough that something always waits, and nothing is refused.
PEAK_CLIENTS = 4
# Short texts of somebody else, and of the flooder when the flood is over, a second.
PROBES = 10.0
# Seconds after the flood for which the flooder is watched.
AFTER = 5.0
# Clients who do not wait for what takes longer.
PATIENCE = 0.5
# What the server counts: sequences computed, and those of clients who left by what had become of them.
COUNTED = (
    "onebert_batch_sequences_sum",
    *(f'onebert_left_sequences_total{{state="{state}"}}' for state in ("waiting", "running", "computed")),
)
KEYS = {"flood": "key-of-who-floods", "other": "key-of-somebody-else"}


def main() -> None:
    """Starts a server, floods it, and prints what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--front-ends", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    settings = {"base": asked.base, "dtype": asked.dtype, "front_ends": asked.front_ends}
    with (
        tempfile.TemporaryDirectory(prefix="onebert-overload-") as folder,
        serving(Path(folder), api_keys=",".join(KEYS.values()), **settings) as server,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as sender,
    ):
        push_tasks(server.url, base := load_base(asked.base), KEYS["other"])
        rows = Overload(server, sender, sentences(base, 256), asked.seconds, asked.times).measure()
    options = f"--dtype {asked.dtype} --front-ends {asked.front_ends} --seconds {asked.seconds:g}"
    command = f"python benchmarks/serving/overload.py {options}"
    cores = os.cpu_count()
    table = markdown_table(["", "found"], rows)
    text = f"{table}\n\n`{command}`, {cores} cores ({platform.machine()}), load average {os.getloadavg()[0]:.1f}."
    print(text)
    if asked.write:
        write_section(PAGE, "overload", text)


@dataclass
class Overload:
    """One server under load."""

    server: ChildServer
    sender: Executor
    texts: Sequence[str]
    seconds: float
    times: float

    def measure(self) -> list[tuple[str, str]]:
        """Everything, one load after the other."""
        flood, probe = self.requests("flood", TEXTS_EACH), self.requests("other", 1)
        self.closed(flood, 1.0)
        peak = self.closed(flood, 10.0).rate
        rate = self.times * peak
        rows = [("peak, closed loop", f"{peak:.1f} requests/s, {peak * TEXTS_EACH:.0f} texts/s")]

        alone = self.open({"other": Stream(probe, PROBES, 0, self.seconds)})["other"]
        busy = self.open(
            {"flood": Stream(flood, 0.9 * peak, 0, self.seconds), "other": Stream(probe, PROBES, 0, self.seconds)}
        )
        end = self.seconds
        before = memory_bytes(self.server.pid)
        with Memory(self.server) as memory:
            found = self.open(
                {
                    "flood": Stream(flood, rate, 0, end),
                    "other": Stream(probe, PROBES, 0, end),
                    "after": Stream(self.requests("flood", 1), PROBES, end, end + AFTER),
                }
            )
        rows += self.refusals(found["flood"], rate, peak)
        rows += self.others(alone, busy["other"], found["other"])
        rows.append(("the flooder's own short texts are answered again", recovery(found["after"], end)))
        rows.append(("memory before, and the most during it", f"{before / 1e6:.0f} MB, {memory.most / 1e6:.0f} MB"))
        rows += self.left(flood, rate, peak)
        return rows

    def requests(self, who: str, each: int) -> list[bytes]:
        """Requests of so many texts, each for another task."""
        items = [{"task": f"task-{place % TASKS}", "text": text} for place, text in enumerate(self.texts)]
        bodies = [json.dumps({"items": items[start : start + each]}) for start in range(0, len(items), each)]
        headers = {"Authorization": f"Bearer {KEYS[who]}"}
        return [Request("/v1/classify", body, headers).encode(self.server.url) for body in bodies]

    def closed(self, requests: Sequence[bytes], seconds: float) -> Load:
        """The rate of clients who wait for their answers."""
        return self.sender.submit(run_load, self.server.url, requests, PEAK_CLIENTS, seconds).result()

    def open(self, streams: dict[str, Stream]) -> dict[str, list[Reply]]:
        """One open loop."""
        return self.sender.submit(run_open_load, self.server.url, streams).result()

    def refusals(self, replies: Sequence[Reply], rate: float, peak: float) -> list[tuple[str, str]]:
        """How the flood was answered."""
        statuses = Counter(reply.status for reply in replies)
        refused = [reply for reply in replies if reply.status in {429, 503}]
        answered = [reply for reply in replies if reply.status == 200]
        goodput = len(answered) / self.seconds
        return [
            ("flood, open loop", f"{rate:.0f} requests/s for {self.seconds:.0f} s, {len(replies)} in all"),
            ("answered with", ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))),
            ("refusals: p50, p99", spread(refused)),
            ("refusals with Retry-After", f"{sum(reply.retry_after for reply in refused)} of {len(refused)}"),
            ("goodput: share of the peak", f"{goodput / peak:.2f}"),
            ("answers: p50, p99", spread(answered)),
        ]

    def others(self, alone: Sequence[Reply], busy: Sequence[Reply], flooded: Sequence[Reply]) -> list[tuple[str, str]]:
        """How somebody else's short texts fared."""
        cases = {"idle server": alone, "beside 0.9 of the peak": busy, "beside the flood": flooded}
        rows = []
        for name, replies in cases.items():
            good = [reply for reply in replies if reply.status == 200]
            rows.append(
                (
                    f"another key's short text, {name}: p50, p99",
                    f"{spread(good)}, {len(replies) - len(good)} not answered",
                )
            )
        worse = p99(flooded) / p99(busy)
        return [*rows, ("its p99 beside the flood, against that beside 0.9 of the peak", f"{worse:.2f}")]

    def left(self, flood: Sequence[bytes], rate: float, peak: float) -> list[tuple[str, str]]:
        """What is computed for clients who leave after `PATIENCE` seconds.

        The server counts the sequences of a request by what had become of them at the moment at which it saw the client
        leave; nothing begins after that. What was computed and neither answered nor counted there was done before the
        server saw it: the answer crossed the end of the connection.
        """
        seconds = self.seconds / 3
        before = self.sequences()
        replies = self.open({"flood": Stream(flood, rate, 0, seconds, PATIENCE)})["flood"]
        time.sleep(1.0)
        after = self.sequences()
        all_computed, waiting, running, computed = (after[name] - before[name] for name in COUNTED)
        good = sum(reply.status == 200 for reply in replies)
        left = sum(reply.status == LEFT for reply in replies)
        unseen = all_computed - good * TEXTS_EACH - running - computed
        wasted = 1 - good * TEXTS_EACH / all_computed if all_computed else math.nan
        return [
            (
                f"clients who leave after {PATIENCE * 1e3:.0f} ms",
                f"{left} of {len(replies)}; {good} were answered before, the others refused",
            ),
            ("goodput of these: share of the peak", f"{good / seconds / peak:.2f}"),
            (
                "sequences of who left, when the server saw it",
                f"{waiting:.0f} waited and were dropped, {running:.0f} were being computed, {computed:.0f} had been",
            ),
            ("sequences whose answer crossed the client's leaving", f"{unseen:.0f}"),
            ("sequences computed for who had left by the end, share of all computed", f"{wasted:.2f}"),
        ]

    def sequences(self) -> dict[str, float]:
        """Sequences computed, and those of clients who left, since the server's start."""
        headers = {"Authorization": f"Bearer {KEYS['other']}"}
        text = httpx.get(f"{self.server.url}/metrics", headers=headers, timeout=60).text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        found = {name: float(value) for name, _, value in lines}
        return {name: found.get(name, 0.0) for name in COUNTED}


class Memory:
    """The most memory that a server's processes held while the block ran."""

    def __init__(self, server: ChildServer) -> None:
        self.most = 0
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.most = max(self.most, memory_bytes(self._server.pid))


def recovery(replies: Sequence[Reply], end: float) -> str:
    """When the first of them was answered, and how many were refused."""
    first = min((reply.due + reply.seconds - end for reply in replies if reply.status == 200), default=math.nan)
    refused = sum(reply.status != 200 for reply in replies)
    return f"the first {first:.2f} s after the flood; {refused} of {len(replies)} in {AFTER:.0f} s were refused"


def p99(replies: Sequence[Reply]) -> float:
    """Seconds; infinite where more than one in a hundred was not answered."""
    return percentile([reply.seconds if reply.status == 200 else math.inf for reply in replies], 0.99)


def spread(replies: Sequence[Reply]) -> str:
    """Median and 99th percentile."""
    if not replies:
        return "none"
    seconds = [reply.seconds for reply in replies]
    return f"{percentile(seconds, 0.5) * 1e3:.1f} ms, {percentile(seconds, 0.99) * 1e3:.1f} ms"


if __name__ == "__main__":
    main()
