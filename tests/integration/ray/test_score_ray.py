"""`onebert score --ray` on a real cluster: killed workers cost nothing, the files are those of one machine."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from bases import tiny_base
from object_server import BUCKET
from offline import bytes_of
from onebert_store.blobs.bucket import open_bucket
from onebert_store.command.process import ONEBERT
from ray_clusters import environment, running_cluster, workers
from servers import Task, run_onebert, wait_until

pytestmark = pytest.mark.slow

ROWS, PART = 4000, 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, Path]]:
    with running_cluster("score_part") as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("score")
    (made / "mood.safetensors").write_bytes(Task("bitfit", "mean", labels=3, seed=1).with_golden().file)
    (made / "topic.safetensors").write_bytes(Task("frozen", "cls", labels=4, seed=2).file)
    texts = [" " if i % 50 == 7 else f"my order {i % 701} was very late and nobody said why" for i in range(ROWS)]
    (made / "rows.csv").write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    return made


def command(folder: Path, out: Path | str, *more: str) -> list[str]:
    tasks = [part for name in ("mood", "topic") for part in ("--task", str(folder / f"{name}.safetensors"))]
    options = ["--part-rows", str(PART), "--base", str(tiny_base()), "--dtype", "float32"]
    return ["score", *tasks, "--data", str(folder / "rows.csv"), "--out", str(out), *options, *more]


def test_killed_workers_change_no_byte(cluster, folder, tmp_path):
    """The cluster goes on with what one machine has begun."""
    address, nodes = cluster
    alone, out = tmp_path / "alone", tmp_path / "cluster"
    done = run_onebert(*command(folder, alone), threads=1)
    assert done.returncode == 0, done.stderr
    out.mkdir()
    for name in ("_job.json", "part-00000-00003.parquet", "part-00000-00039.parquet"):
        shutil.copy2(alone / name, out / name)
    asked = command(folder, out, "--ray", address)
    pipe = subprocess.PIPE
    with subprocess.Popen([*ONEBERT, *asked], stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        wait_until(lambda: len([*out.glob("part-*")]) > 4 or process.poll() is not None, seconds=900)
        killed = workers(nodes, "score_part")
        for worker in killed:
            os.kill(worker, signal.SIGKILL)
        printed, errors = process.communicate()
    assert killed
    assert process.returncode == 0, errors
    # Beside it, Ray says there what became of its workers.
    assert f"4,000 rows in 40 files in {out}, 80 without an answer\n" in printed
    assert bytes_of(out) == bytes_of(alone)


def test_a_cluster_whose_nodes_know_no_bucket_scores_into_one(cluster, folder, tmp_path, bucket_prefix):
    """This machine writes, from whose environment the credentials never leave."""
    address, _ = cluster
    done = run_onebert(*command(folder, tmp_path / "alone"), threads=1)
    assert done.returncode == 0, done.stderr
    url = f"s3://{BUCKET}/{bucket_prefix}"
    done = run_onebert(*command(folder, url, "--ray", address), env=environment())
    assert done.returncode == 0, done.stderr
    client = open_bucket(BUCKET, bucket_prefix)
    there = {
        entry["path"]: bytes(obstore.get(client, entry["path"]).bytes()) for entry in obstore.list(client).collect()
    }
    assert there == {name: data for name, data in bytes_of(tmp_path / "alone").items() if not name.startswith(".")}
