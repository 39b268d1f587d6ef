"""`make bench-gpu`: tests and measures OneBERT on one GPU, in minutes and without a network.

    python benchmarks/gpu.py [--only latency throughput] [--device cuda] [--seconds 520] [--out FOLDER]

BERT-base has random weights and is made on the spot. The most important sections come first, results are written after
each one, and after `--seconds` whatever runs is ended. What fails in one section is a line in the results of the
others. Nothing has to be installed: Python packages that a machine lacks are taken from `--wheels` (`make gpu-wheels`
fills that folder on a machine with a network). `--tiny --device cpu` only tries whether everything runs.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path

from onebert_bench.checkout import complete_path
from onebert_bench.script import ROOT, options, say

# For the tests, and for one section.
TEST_SECONDS, SECTION_SECONDS = 120.0, 90.0
# Processes that test at once: what takes the time is compiling, which the processor does.
TESTERS = 12


def main() -> None:
    """Tests, measures and writes."""
    started = time.monotonic()
    asked = options(
        __doc__,
        only=[""],
        device="cuda",
        seconds=520.0,
        tiny=False,
        no_tests=False,
        out=ROOT / "benchmarks" / "results",
        wheels=ROOT / ".wheels",
    )
    os.environ["HF_HUB_OFFLINE"] = "1"
    complete_path(ROOT, asked.wheels)
    try:
        import torch  # noqa: PLC0415 - what is missing is told of below

        from onebert_bench.gpu.conduct import SECTIONS, conduct  # noqa: PLC0415
        from onebert_bench.gpu.made import Made  # noqa: PLC0415
        from onebert_bench.gpu.run import Run  # noqa: PLC0415
        from onebert_bench.machine import machine  # noqa: PLC0415
        from onebert_bench.report import Section  # noqa: PLC0415
        from onebert_bench.workload import minilm_folder  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is missing; `make gpu-wheels`, where there is a network, brings what may be")
    if asked.device != "cpu" and not torch.cuda.is_available():
        sys.exit("error: PyTorch sees no GPU; `--tiny --device cpu` tries whether everything runs")
    weights = "BERT-base and MiniLM-L6 have" if minilm_folder() is None else "BERT-base has"
    run = Run({**machine(asked.device), "versions": versions(), "weights": f"{weights} random weights."})

    def report(name: str, result: Section | str) -> None:
        if isinstance(result, Section):
            run.sections[name] = result
        else:
            run.failed[name] = result
        run.write(asked.out)
        say(result.page() if isinstance(result, Section) else f"{name}: {result}")

    if not asked.no_tests:
        run.tests = tested(asked.out)
        say(f"tests: {run.tests}")
        run.write(asked.out)
    with tempfile.TemporaryDirectory(prefix="onebert-bench-gpu-", ignore_cleanup_errors=True) as folder:
        made = Made(Path(folder), asked.device, asked.tiny)
        wanted = [name for name in SECTIONS if {"", name} & set(asked.only)]
        conduct(wanted, made, SECTION_SECONDS, started + asked.seconds, report)
    say(f"wrote {run.write(asked.out)}")


def versions() -> dict[str, str]:
    """The versions of the libraries that matter for speed."""
    wanted = ("torch", "triton", "transformers", "onebert")
    versions = {
        distribution.name: distribution.version for distribution in distributions() if distribution.name in wanted
    }
    return {"Python": sys.version.split()[0], **versions}


def tested(out: Path) -> str:
    """Runs the tests that are marked for GPUs, whose output is kept beside the results; returns their last line."""
    command = [sys.executable, *"-m pytest --verbose -m gpu -W default -p no:cacheprovider".split()]
    command += ["--continue-on-collection-errors", "tests/unit/encoder"]
    if importlib.util.find_spec("xdist") is not None:
        command += ["--numprocesses", str(min(TESTERS, os.cpu_count() or 1))]
    out.mkdir(parents=True, exist_ok=True)
    log = out / "tests.log"
    with log.open("w", encoding="utf-8") as written:
        process = subprocess.Popen(command, cwd=ROOT, stdout=written, stderr=written, start_new_session=True)
        try:
            process.wait(TEST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            lines = log.read_text(encoding="utf-8").splitlines()
            passed, failed = (sum(f" {word} " in line for line in lines) for word in ("PASSED", "FAILED"))
            return f"not done after {TEST_SECONDS:.0f} s, {passed} passed, {failed} failed"
    return (log.read_text(encoding="utf-8").strip().splitlines() or ["pytest did not run"])[-1].strip("= ")


if __name__ == "__main__":
    main()
