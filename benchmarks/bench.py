"""`make bench`: measures OneBERT beside the alternatives, and writes benchmarks/results.

    python benchmarks/bench.py [--data FOLDER] [--only "one task" http] [--repetitions 5]

FOLDER holds `sst2`, `mrpc` and `imdb` as folders for `onebert train`; without it, texts of equal lengths are made up.
`--only` takes names of scenes, "http", and the parts "front ends", "loads and unloads", "tasks held" and
"five tasks". `--page` names the files of the results; the machine's name by default.

The first run installs every peer into an environment of its own under `.bench`.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from onebert_bench.compute import measured_dtypes
from onebert_bench.machine import machine
from onebert_bench.report import Section
from onebert_bench.script import ROOT, options, say
from onebert_bench.suite.alone import PARTS
from onebert_bench.suite.copies import five_tasks
from onebert_bench.suite.measure import Measurer, Outcome, Settings, batch
from onebert_bench.suite.over_http import measure_peers
from onebert_bench.suite.page import write_page
from onebert_bench.suite.results import Results
from onebert_bench.suite.scenes import DTYPES, Scene, scenes
from onebert_bench.suite.workload import Workload
from onebert_bench.workload import BERT_BASE, MINILM, MODERN_BERT, MPNET, TINY

BASES = (MINILM, BERT_BASE, TINY, MPNET, MODERN_BERT)


def main() -> None:
    """Measures, and writes JSON, page and pictures."""
    asked = options(
        __doc__,
        data=None,
        only=[""],
        repetitions=5,
        threads=os.cpu_count() or 1,
        cache=ROOT / ".bench",
        page=None,
        out=ROOT / "benchmarks" / "results",
    )
    # SIGTERM becomes a normal exit, so that no server or worker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    settings = Settings(asked.threads, asked.repetitions, asked.cache.resolve())
    data = Path(asked.data) if asked.data else None
    workloads = {name: Workload(name, settings.cache / "work", data) for name in BASES}
    dtypes = measured_dtypes("cpu")
    left_out = [dtype for dtype in DTYPES if dtype not in dtypes]
    of_run = {"threads": asked.threads, "repetitions": asked.repetitions, "left_out": left_out}
    named = {"name": asked.page} if asked.page else {}
    results = Results(machine("cpu") | of_run | named, real_texts=data is not None)
    # The file is written after each scene and part, so that a later failure loses nothing.
    with Measurer(settings) as measurer:
        for scene in scenes(dtypes):
            if any(part in scene.name for part in asked.only):
                say(scene.name)
                tokens, outcomes = measured_scene(measurer, scene, workloads[scene.base])
                results.tokens[scene.name] = tokens
                results.scenes.append((scene, outcomes))
                results.versions = measurer.versions
                results.write(asked.out)
    for name, measure in {**PARTS, "five tasks": five_tasks}.items():
        if {"", name} & set(asked.only):
            say(name)
            results.parts[name] = measured_part(name, partial(measure, settings, workloads))
            results.write(asked.out)
    if {"", "http"} & set(asked.only):
        say("http")
        results.http = measure_peers(settings, workloads[MINILM])
    results.write(asked.out)
    say(f"wrote {write_page(asked.out)}")


def measured_scene(measurer: Measurer, scene: Scene, workload: Workload) -> tuple[int, list[Outcome]]:
    """The tokens of a scene's batch, and its outcomes; where its base is missing or a floor ends, all say so."""
    try:
        return sum(map(len, batch(scene, workload))), measurer.measure(scene, workload)
    except Exception as error:  # an hour of measuring must not end with one scene
        return 0, [Outcome(case, failed=reason(error)) for case in scene.cases]


def measured_part(name: str, measure: Callable[[], Section]) -> Section:
    """A part's section; of a part that fails, its reason."""
    try:
        return measure()
    except Exception as error:
        return Section(name.capitalize(), "", ("part", "result"), [[name, f"failed: {reason(error)}"]])


def reason(error: Exception) -> str:
    """The first line of an error, which is also told at once."""
    text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    say(f"failed: {text}")
    return text


if __name__ == "__main__":
    main()
