"""Writes the first table of benchmarks/results/accuracy.md: `onebert train`, upload, and the answers over HTTP.

    python benchmarks/training/results.py --data FOLDER [--jobs 2] [--work results-work]

FOLDER holds one folder per data set of that page, each with train/validation/test files. Every finished
training leaves its record in the work folder, and a second call trains only what is missing or was trained otherwise.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS, options
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.command.process import ONEBERT
from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.tasks.objectives import OBJECTIVES

METHODS = ("frozen", "bitfit", "layernorm", "spafit:1-3-I")
# Data set -> options with which two cores finish in reasonable time; only SST-2 is not used whole.
RUNS: dict[str, list[str]] = {
    "sst2": ["--train-rows", "8000", "--epochs", "2"],
    "banking77": ["--epochs", "4"],
    "sms_spam": ["--epochs", "2"],
    "mrpc": ["--epochs", "3"],
    "stsb": ["--epochs", "3"],
    "trec6": ["--epochs", "5"],
}
# A frozen encoder needs more epochs, and its steps cost half.
FROZEN = ["--epochs", "5"]
ALWAYS = ["--evals-per-epoch", "2"]


@dataclass(frozen=True)
class Trained:
    """One finished training."""

    name: str
    method: str
    record: dict[str, Any]
    file: Path


def main() -> None:
    """Trains what is missing, serves everything, compares, and writes the page."""
    arguments = options(__doc__, data=Path, work=Path("results-work"), jobs=2)
    arguments.work.mkdir(exist_ok=True)
    wanted = [(name, method) for name in RUNS for method in METHODS]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        trained = list(pool.map(lambda one: train(one[0], one[1], arguments.data, arguments.work), wanted))
    with serving(arguments.work / "store") as server, Client(server.url) as client:
        served = [measure(client, one, arguments.data) for one in trained]
    rows = [row(one, scores) for one, scores in zip(trained, served, strict=True)]
    header = ["data", "rows", "method", "metric", "printed by `train`", "served over HTTP", "trained", "file", "time"]
    write_section(RESULTS / "accuracy.md", "accuracy", markdown_table(header, rows))
    different = [f"{one.name} {one.method}" for one, line in zip(trained, rows, strict=True) if line[4] != line[5]]
    print(f"{len(rows)} deltas served; different from what was printed: {different or 'none'}")
    sys.exit(bool(different))


def train(name: str, method: str, data: Path, work: Path) -> Trained:
    """Runs `onebert train`, unless there is a record of the same training already."""
    stem = f"{name}-{method.replace(':', '-')}"
    record, file = work / f"{stem}.json", work / f"{stem}.safetensors"
    options = [*ALWAYS, *RUNS[name], *(FROZEN if method == "frozen" else [])]
    arguments = ["--task", name, "--method", method, *options]
    facts = finished(record, arguments)
    if facts is None:
        command = [*ONEBERT, "train", *arguments, "--data", str(data / name), "--out", str(file), "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        facts = json.loads(done.stdout) | {"arguments": arguments}
        record.write_text(json.dumps(facts, indent=2), encoding="utf-8")
        print(f"trained {stem}", flush=True)
    return Trained(name, method, facts, file)


def finished(record: Path, arguments: list[str]) -> dict[str, Any] | None:
    """The record of an earlier training with the same arguments; a record without arguments counts as the same."""
    if not record.exists():
        return None
    facts: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return facts if facts.get("arguments", arguments) == arguments else None


def measure(client: Client, one: Trained, data: Path) -> dict[str, float]:
    """Metrics of the server's answers for the measured split."""
    dataset = load_dataset(str(data / one.name))
    task = f"{one.name}-{one.method.replace(':', '-')}".lower()
    version = client.push(task, one.file).version
    split = dataset.splits[split_name(dataset)]
    results = client.classify(f"{task}@{version}", split.texts)
    scores = np.array([[(result.scores or {})[label] for label in dataset.labels] for result in results])
    return OBJECTIVES[dataset.task_type](dataset.labels).evaluate(split, [], list(scores))


def split_name(dataset: Dataset) -> str:
    """The split that is measured: test if it has labels, else validation, as in papers."""
    return "test" if "test" in dataset.splits else "validation"


def row(one: Trained, served: dict[str, float]) -> list[str]:
    """One line of the table."""
    record, metric = one.record, one.record["metric"]
    printed = record.get("test") or record["validation"]
    split = "test" if record.get("test") else "validation"
    return [
        one.name,
        f"{record['rows']['train']:,}",
        f"`{one.method}`",
        f"{metric}, {split}",
        f"{printed[metric]:.4f}",
        f"{served[metric]:.4f}",
        f"{record['delta_parameters']:,} ({record['percent']:.2f} %)",
        f"{record['file_bytes'] / 1000:.0f} kB",
        f"{record['seconds']:.0f} s",
    ]


if __name__ == "__main__":
    main()
