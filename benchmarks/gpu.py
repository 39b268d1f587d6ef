"""`make bench-gpu`: tests and measures OneBERT on one GPU, in minutes and without a network.

    python benchmarks/gpu.py [--only latency --only throughput] [--device cuda] [--seconds 520] [--out FOLDER]

Bases have random weights and are made on the spot. The most important sections come first, results are written after
each one, and no section begins after `--seconds`. `--tiny --device cpu` only tries whether everything runs.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from onebert_bench.gpu.http import http
from onebert_bench.gpu.inside import ceilings, kernels, profiled, waits
from onebert_bench.gpu.made import Made, Scale
from onebert_bench.gpu.page import Run
from onebert_bench.gpu.section import Section
from onebert_bench.gpu.serving import exactness, latency, mixed, resident, throughput
from onebert_bench.gpu.training import training
from onebert_bench.progress import say
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.results import machine

ROOT = Path(__file__).parents[1]
SECTIONS: Mapping[str, Callable[[Made], Section]] = {
    "exactness": exactness,
    "throughput": throughput,
    "latency": latency,
    "mixed": mixed,
    "waits": waits,
    "kernels": kernels,
    "ceilings": ceilings,
    "resident": resident,
    "profile": profiled,
    "training": training,
    "http": http,
}
TEST_SECONDS = 180


def main() -> None:
    """Tests, measures and writes."""
    asked = parse()
    started = time.monotonic()
    run = Run(about(asked.device))
    if asked.tests:
        run.tests = tested(asked.out)
        say(started, f"tests: {run.tests}")
    with tempfile.TemporaryDirectory(prefix="onebert-bench-gpu-") as folder:
        made = Made(Path(folder), asked.device, Scale(asked.tiny))
        for name in asked.only or SECTIONS:
            say(started, name)
            if time.monotonic() - started > asked.seconds:
                run.failed[name] = "no time was left"
                continue
            try:
                run.sections[name] = SECTIONS[name](made)
                say(started, run.sections[name].page())
            except Exception as error:  # a section that fails must not stop the others
                traceback.print_exc()
                run.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            run.write(asked.out)
    say(started, f"wrote {run.write(asked.out)}")


def about(device: str) -> dict[str, object]:
    """The machine and the versions of the libraries that matter for speed."""
    versions = {"Python": sys.version.split()[0]}
    for package in ("torch", "triton", "transformers", "onebert"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # not installed, but found by its path
            continue
    return {**machine(Settings(device, torch.get_num_threads(), 1, Path())), "versions": versions}


def tested(out: Path) -> str:
    """pytest's last line for the tests that are marked for GPUs; its whole output is kept beside the results."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, "tests/unit/encoder"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TEST_SECONDS} s"
    out.mkdir(parents=True, exist_ok=True)
    (out / "tests.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return (done.stdout.strip().splitlines() or ["pytest did not run"])[-1].strip("= ")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="these sections, in this order")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the script")
    parser.add_argument("--seconds", type=float, default=420, help="no section begins after so many")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, whose numbers mean nothing")
    parser.add_argument("--no-tests", dest="tests", action="store_false", help="measure only")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="where results go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
