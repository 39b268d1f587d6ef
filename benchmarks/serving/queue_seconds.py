"""Measures what the autoscaler of deploy/kubernetes reads, the seconds of work that wait, at shares of the peak.

python benchmarks/serving/queue_seconds.py [--base NAME] [--dtype auto] [--seconds 12]

One request holds 16 sentences for 16 of 64 tasks; they come in an open loop, from another process of this machine.
"""

import argparse
import multiprocessing
import os
import platform
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import httpx

from onebert_bench.http_load import push_tasks, requests_for
from onebert_bench.load import run_load
from onebert_bench.open_load import Reply, Stream, run_open_load
from onebert_bench.pages import markdown_table
from onebert_bench.ranks import percentile
from onebert_bench.workload import sentences
from onebert_encoder.base.base import load_base
from onebert_server.process import serving

TEXTS_EACH = 16
# Clients of the closed loop that finds the peak: enough that something always waits, and nothing is refused.
PEAK_CLIENTS = 4
PEAK_SECONDS = 8.0
SHARES = (0.5, 0.7, 0.9, 1.0, 1.2, 2.0)
# Seconds between two looks at the metric; a mean of them is what the autoscaler reads.
STEP = 0.1


def main() -> None:
    """Starts a server, loads it more and more, and prints what waited."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seconds", type=float, default=12.0)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="onebert-queue-") as folder,
        serving(Path(folder), base=asked.base, dtype=asked.dtype) as server,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as sender,
    ):
        push_tasks(server.url, base := load_base(asked.base))
        requests = requests_for(server.url, sentences(base, 256), TEXTS_EACH)
        peak = sender.submit(run_load, server.url, requests, PEAK_CLIENTS, PEAK_SECONDS).result().rate
        rows = []
        for share in SHARES:
            stream = Stream(requests, share * peak, 0, asked.seconds)
            sent = sender.submit(run_open_load, server.url, {"load": stream})
            waited = []
            while not sent.done():
                waited.append(queue_seconds(server.url))
                time.sleep(STEP)
            rows.append(row(share, waited, sent.result()["load"]))
    command = f"python benchmarks/serving/queue_seconds.py --dtype {asked.dtype} --seconds {asked.seconds:g}"
    print(markdown_table(["load, of the peak", "seconds that wait: mean, most", "answers: p50, p99", "refused"], rows))
    print(f"\n`{command}`, {os.cpu_count()} cores ({platform.machine()}), peak {peak * TEXTS_EACH:.0f} texts/s.")


def queue_seconds(url: str) -> float:
    """The metric, now."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    return float(re.search(r"^onebert_queue_seconds (\S+)$", text, re.MULTILINE)[1])


def row(share: float, waited: Sequence[float], replies: Sequence[Reply]) -> tuple[str, str, str, str]:
    """What was seen under one load."""
    good = [reply.seconds for reply in replies if reply.status == 200]
    times = ", ".join(f"{percentile(good, rank) * 1e3:.0f} ms" for rank in (0.5, 0.99))
    refused = (len(replies) - len(good)) / len(replies)
    return f"{share:g}", f"{sum(waited) / len(waited):.3f}, {max(waited):.3f}", times, f"{refused:.0%}"


if __name__ == "__main__":
    main()
