"""`onebert sweep --ray` on a real cluster: killed workers cost no finished run, records are those of a local sweep."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bases import tiny_base
from onebert_store.command.process import ONEBERT
from onebert_store.file.format import load
from ray_clusters import environment, running_cluster, workers
from trainings import write_tone

# Beside other tests a cluster takes minutes to be ready.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Two tasks of two runs each; batches of 24 need a third of the steps of batches of 8, so one of each ends early.
RECIPE = """
name = "clustered"
paper = "none"
description = "short and long runs"
[settings]
method = "bitfit"
epochs = 20
evals_per_epoch = 1
patience = 0
learning_rate = 0.01
[grid]
data = ["tone"]
batch_size = [8, 24]
seed = [0, 1]
"""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The sweep's command but for where it writes."""
    root = tmp_path_factory.mktemp("sweep")
    write_tone(root / "data/tone")
    (root / "clustered.toml").write_text(RECIPE)
    return ["sweep", str(root / "clustered.toml"), "--data", str(root / "data"), "--base", str(tiny_base())]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, Path]]:
    """Address of a cluster, and the folder of its sockets and of its nodes' caches."""
    with running_cluster("train_group") as running:
        yield running


def records_in(out: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}


def test_killed_workers_cost_no_finished_run(arguments, cluster, tmp_path):
    address, folder = cluster
    out = tmp_path / "cluster"
    command = [*ONEBERT, *arguments, "--ray", address, "--out", str(out)]
    finished, before = [], {}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()) as sweep:
        said = []
        for line in sweep.stderr:
            said.append(line)
            if line[1:4] != "/4 ":
                continue
            finished.append(line.split()[1].removesuffix(":"))
            if not before:
                # A short run is done; the long ones of its task have had as many steps, so they have checkpoints.
                before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.glob(f"{finished[0]}.*")}
                for worker in workers(folder, "train_group"):
                    os.kill(worker, signal.SIGKILL)
        printed = sweep.stdout.read()
    assert sweep.returncode == 0, said
    records = records_in(out)
    assert sorted(finished) == sorted(records)
    assert len(records) == 4
    assert any(line.startswith("note: a worker ended with ") for line in said)
    assert len(before) == 2
    assert all((path.stat().st_mtime_ns, path.read_bytes()) == content for path, content in before.items())
    assert records[finished[0]]["resumed_at"] == 0
    assert any(record["resumed_at"] > 0 for record in records.values())
    assert list((folder / "onebert/checkpoints").glob("[!.]*")) == []
    best = max(record["validation"]["accuracy"] for record in records.values())
    assert f"publish: tone: bitfit, accuracy {best:.4f} on validation" in printed

    local = [*ONEBERT, *arguments, "--device", "cpu", "--out", str(tmp_path / "local")]
    subprocess.run(local, check=True, capture_output=True)
    alone = records_in(tmp_path / "local")
    assert alone.keys() == records.keys()
    for name, record in records.items():
        assert load(out / f"{name}.safetensors").digest == record["digest"]
        assert [one["step"] for one in record["history"]] == [one["step"] for one in alone[name]["history"]]
        # Other company in a batch rounds otherwise; steps of a hundredth carry that on, but not far.
        for here, there in zip(record["history"], alone[name]["history"], strict=True):
            assert here["validation_loss"] == pytest.approx(there["validation_loss"], rel=1e-3)


def test_runs_that_a_cluster_cannot_train_are_lost_and_not_failed(arguments, cluster, tmp_path):
    """The base is in the cache of this machine and of no node."""
    address, _ = cluster
    cached = tmp_path / "hub/models--tiny--base"
    shutil.copytree(tiny_base(), cached / "snapshots/1")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("1")
    out = tmp_path / "runs"
    command = [*ONEBERT, *arguments[:-1], "tiny/base", "--ray", address, "--out", str(out)]
    env = environment() | {"HF_HUB_CACHE": str(tmp_path / "hub")}
    swept = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    said = swept.stderr.splitlines()
    assert swept.returncode == 1
    assert said[-1] == "error: 4 of 4 runs were lost; the same command tries them again"
    assert sum(": lost: base 'tiny/base' is not a folder" in line for line in said) == 4, said
    assert list(out.glob("*.json")) == list((out / "failed").iterdir()) == []
