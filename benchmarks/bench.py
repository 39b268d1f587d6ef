"""`make bench`: measures OneBERT beside the alternatives, and writes benchmarks/results.

    python benchmarks/bench.py [--data FOLDER] [--only "one task" --only http] [--repetitions 5] [--device cuda]

FOLDER holds `sst2`, `mrpc` and `imdb` as folders for `onebert train`; without it, texts of equal lengths are made up.
`--only` takes names of scenes, "http", and the parts "front ends", "loads and unloads" and "tasks held".

The first run installs every peer into an environment of its own under `.bench`.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from onebert_bench.compute import measured_dtypes
from onebert_bench.progress import say
from onebert_bench.suite.measure import Measurer, Settings, batch
from onebert_bench.suite.over_http import measure_peers
from onebert_bench.suite.page import write_page
from onebert_bench.suite.parts.parts import PARTS
from onebert_bench.suite.results import Results, machine
from onebert_bench.suite.scenes import scenes
from onebert_bench.suite.workload import BERT_BASE, MINILM, TINY, Workload

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measures, and writes JSON, page and pictures."""
    arguments = parse()
    # SIGTERM becomes a normal exit, so that no server or worker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    settings = Settings(
        arguments.device, arguments.threads or os.cpu_count() or 1, arguments.repetitions, arguments.cache.resolve()
    )
    workloads = {name: Workload(name, settings.cache / "work", arguments.data) for name in (MINILM, BERT_BASE, TINY)}
    wanted = [
        s
        for s in scenes(settings.device, measured_dtypes(settings.device))
        if not arguments.only or any(part in s.name for part in arguments.only)
    ]
    results = Results(machine(settings), real_texts=arguments.data is not None)
    # The file is written after each scene and part, so that a later failure loses nothing.
    file = arguments.out / f"{results.machine['name']}.json"
    started = time.monotonic()
    with Measurer(settings) as measurer:
        for scene in wanted:
            say(started, scene.name)
            workload = workloads[scene.base]
            results.tokens[scene.name] = sum(map(len, batch(scene, workload)))
            results.scenes.append((scene, measurer.measure(scene, workload)))
            results.versions = measurer.versions
            results.write(file)
    for name, measure in PARTS.items():
        if not arguments.only or name in arguments.only:
            say(started, name)
            results.parts[name] = measure(settings, workloads)
            results.write(file)
    if not arguments.only or "http" in arguments.only:
        say(started, "http")
        results.http = measure_peers(settings, workloads[MINILM])
    results.write(file)
    say(started, f"wrote {write_page(results, arguments.out)}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the real texts")
    parser.add_argument("--only", action="append", help="scenes whose name has this; or http, or a part")
    parser.add_argument("--repetitions", type=int, default=5, help="behind each median")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, help="for everybody; default: all cores")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="environments, models and logs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="where results go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
