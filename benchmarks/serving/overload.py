"""Measures a server at shares of its peak and far above it, by an open loop.

    python benchmarks/serving/overload.py [--base NAME] [--dtype float32] [--front-ends 0] [--seconds 30] [--times 10]
        [--write]
    python benchmarks/serving/overload.py --queue [--dtype auto] [--seconds 12]

The first is benchmarks/results/overload.md, at ten times what the server can do; `--write` puts the table
there. The second is what the autoscaler of deploy/kubernetes reads, the seconds of work that wait, at shares of the
peak. One request holds 16 sentences for 16 of 64 tasks. The sender has a process of its own on the same machine, and
takes its share of it.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import httpx

from onebert_bench.load import Load, Reply, Stream, run_load, run_open_load
from onebert_bench.machine import conditions, memory_bytes, process
from onebert_bench.numbers import percentile
from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS, options
from onebert_bench.servers import bitfit_files, loaded, requests_for
from onebert_bench.workload import sentences
from onebert_encoder.base.base import load_base
from onebert_server.run.serving import ChildServer

TEXTS_EACH = 16
# Clients of the closed loop that finds the peak: enough that something always waits, and nothing is refused.
PEAK_CLIENTS = 4
# Short texts of somebody else, and of the flooder when the flood is over, a second.
PROBES = 10.0
# Seconds after the flood for which the flooder is watched.
AFTER = 5.0
SHARES = (0.5, 0.7, 0.9, 1.0, 1.2, 2.0)
QUEUED = "onebert_queue_seconds"
KEYS = {"flood": "key-of-who-floods", "other": "key-of-somebody-else"}

Rows = list[Sequence[str]]


def main() -> None:
    """Starts a server, loads it, and prints the table."""
    asked = options(__doc__, base=None, dtype="", front_ends=0, seconds=0.0, times=10.0, queue=False, write=False)
    asked.dtype = asked.dtype or ("auto" if asked.queue else "float32")
    asked.seconds = asked.seconds or (12.0 if asked.queue else 30.0)
    base = load_base(asked.base)
    settings = {"base": asked.base, "dtype": asked.dtype, "front_ends": asked.front_ends}
    with (
        loaded(bitfit_files(base), KEYS["other"], api_keys=",".join(KEYS.values()), **settings) as server,
        process() as sender,
    ):
        overload = Overload(server, sender, sentences(base, 256), asked.seconds)
        table = overload.queue() if asked.queue else overload.flood(asked.times)
    mode = "--queue" if asked.queue else f"--front-ends {asked.front_ends}"
    given = f"python benchmarks/serving/overload.py {mode} --dtype {asked.dtype} --seconds {asked.seconds:g}"
    text = f"{table}\n\n`{given}`, {conditions()}, peak {overload.peak * TEXTS_EACH:.0f} texts/s."
    print(text)
    if asked.write:
        write_section(RESULTS / "overload.md", "overload", text)


@dataclass
class Overload:
    """One server under load."""

    server: ChildServer
    sender: Executor
    texts: Sequence[str]
    seconds: float

    def __post_init__(self) -> None:
        self.texts_of_flood, self.probe = self.requests("flood", TEXTS_EACH), self.requests("other", 1)
        self.closed(1.0)
        self.peak = self.closed(10.0).rate

    def flood(self, times: float) -> str:
        """The flood of one key, and another key's short texts beside it."""
        end, rate = self.seconds, times * self.peak
        flood, probe = self.texts_of_flood, Stream(self.probe, PROBES, 0, self.seconds)
        alone = self.open(other=probe)["other"]
        busy = self.open(flood=Stream(flood, 0.9 * self.peak, 0, end), other=probe)["other"]
        before = memory_bytes(self.server.pid)
        streams = {
            "flood": Stream(flood, rate, 0, end),
            "other": probe,
            "after": Stream(self.requests("flood", 1), PROBES, end, end + AFTER),
        }
        held, replies = watched(self.send(**streams), 1.0, lambda: memory_bytes(self.server.pid))
        rows = [
            ("peak, closed loop", f"{self.peak:.1f} requests/s, {self.peak * TEXTS_EACH:.0f} texts/s"),
            *self.refusals(replies["flood"], rate),
            *self.others(alone, busy, replies["other"]),
            ("the flooder's own short texts are answered again", recovery(replies["after"], end)),
            ("memory before, and the most during it", f"{before / 1e6:.0f} MB, {max(held) / 1e6:.0f} MB"),
        ]
        return markdown_table(["", "found"], rows)

    def queue(self) -> str:
        """The seconds of work that wait, at shares of the peak."""
        rows: Rows = []
        for share in SHARES:
            sent = self.send(load=Stream(self.texts_of_flood, share * self.peak, 0, self.seconds))
            # The autoscaler reads the mean of some looks at the metric.
            waited, replies = watched(sent, 0.1, self.queued)
            good = [reply for reply in replies["load"] if reply.status == 200]
            refused = 1 - len(good) / max(1, len(replies["load"]))
            mean = sum(waited) / len(waited)
            rows.append((f"{share:g}", f"{mean:.3f}, {max(waited):.3f}", spread(good), f"{refused:.0%}"))
        header = ["load, of the peak", "seconds that wait: mean, most", "answers: p50, p99", "refused"]
        return markdown_table(header, rows)

    def requests(self, who: str, each: int) -> list[bytes]:
        """Requests of so many texts, each for another task."""
        return requests_for(self.server.url, self.texts, each, {"Authorization": f"Bearer {KEYS[who]}"})

    def closed(self, seconds: float) -> Load:
        """The rate of clients who wait for their answers."""
        return self.sender.submit(run_load, self.server.url, self.texts_of_flood, PEAK_CLIENTS, seconds).result()

    def send(self, **streams: Stream) -> Future[dict[str, list[Reply]]]:
        """One open loop, which goes on meanwhile."""
        return self.sender.submit(run_open_load, self.server.url, streams)

    def open(self, **streams: Stream) -> dict[str, list[Reply]]:
        """One open loop."""
        return self.send(**streams).result()

    def refusals(self, replies: Sequence[Reply], rate: float) -> Rows:
        """How the flood was answered."""
        statuses = Counter(reply.status for reply in replies)
        refused = [reply for reply in replies if reply.status in {429, 503}]
        answered = [reply for reply in replies if reply.status == 200]
        return [
            ("flood, open loop", f"{rate:.0f} requests/s for {self.seconds:.0f} s, {len(replies)} in all"),
            ("answered with", ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))),
            ("refusals: p50, p99", spread(refused)),
            ("refusals with Retry-After", f"{sum(reply.retry_after for reply in refused)} of {len(refused)}"),
            ("goodput: share of the peak", f"{len(answered) / self.seconds / self.peak:.2f}"),
            ("answers: p50, p99", spread(answered)),
        ]

    def others(self, alone: Sequence[Reply], busy: Sequence[Reply], flooded: Sequence[Reply]) -> Rows:
        """How somebody else's short texts fared."""
        rows: Rows = []
        cases = {"idle server": alone, "beside 0.9 of the peak": busy, "beside the flood": flooded}
        for name, replies in cases.items():
            good = [reply for reply in replies if reply.status == 200]
            answered = f"{spread(good)}, {len(replies) - len(good)} not answered"
            rows.append((f"another key's short text, {name}: p50, p99", answered))
        worse = f"{p99(flooded) / p99(busy):.2f}"
        return [*rows, ("its p99 beside the flood, against that beside 0.9 of the peak", worse)]

    def queued(self) -> float:
        """The seconds of work that wait now."""
        headers = {"Authorization": f"Bearer {KEYS['other']}"}
        text = httpx.get(f"{self.server.url}/metrics", headers=headers, timeout=60).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{QUEUED} "))


def watched(
    sent: Future[dict[str, list[Reply]]], every: float, look: Callable[[], float]
) -> tuple[list[float], dict[str, list[Reply]]]:
    """What was seen every so many seconds while a load went on, and its replies."""
    ended, seen = threading.Event(), [look()]
    sent.add_done_callback(lambda _: ended.set())
    while not ended.wait(every):
        seen.append(look())
    return seen, sent.result()


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
