"""`onebert score --vectors`: the vectors of sentence-transformers, beside a task's answers, in each kind of file."""

import json

import numpy as np
import pyarrow.parquet
import pytest

from bases import tiny_base
from sentences import saved_by_sentence_transformers
from servers import Task, run_onebert

TEXTS = ["please help my order is late", None, "the parcel is broken " * 40, "a", "please help my order is late"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"id": f"r{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS))
    )
    (folder / "tone.safetensors").write_bytes(Task(seed=1).with_golden().file)
    return folder


def score(folder, out, *arguments, base):
    command = "score", "--data", folder / "rows.jsonl", "--out", out, "--base", base, "--dtype", "float32"
    return run_onebert(*map(str, (*command, *arguments)))


@pytest.mark.parametrize(("family", "pooling", "normalize"), [("bert", "mean", True), ("mpnet", "cls", False)])
def test_vectors_are_those_of_sentence_transformers(folder, tmp_path, family, pooling, normalize):
    model = saved_by_sentence_transformers(tmp_path / "base", family, pooling, normalize=normalize)
    tasks = ["--task", folder / "tone.safetensors"] if family == "bert" else []
    done = score(folder, tmp_path / "out.parquet", "--vectors", *tasks, base=tmp_path / "base")
    assert done.returncode == 0, done.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["vector"] is None for row in rows] == [text is None for text in TEXTS]
    assert [row["vector_truncated"] for row in rows] == [False, None, True, False, False]
    texts = [text for text in TEXTS if text is not None]
    vectors = [row["vector"] for row in rows if row["vector"] is not None]
    np.testing.assert_allclose(vectors, model.encode(texts), atol=1e-5)
    if tasks:
        scores = Task(seed=1).scores(TEXTS[0])
        assert rows[0]["tone_label"] == max(scores, key=scores.get)
    for ending in ("jsonl", "csv"):
        assert score(folder, tmp_path / f"out.{ending}", "--vectors", base=tmp_path / "base").returncode == 0
    [first, *_] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    np.testing.assert_allclose(first["vector"], vectors[0], rtol=1e-6)


def test_refusals_of_vectors(folder, tmp_path):
    unpooled = score(folder, tmp_path / "out.csv", "--vectors", base=tiny_base())
    assert unpooled.returncode == 1
    assert "makes no vectors: it has no modules.json" in " ".join(unpooled.stderr.split())
    (tmp_path / "vector.safetensors").write_bytes((folder / "tone.safetensors").read_bytes())
    arguments = ("--vectors", "--task", tmp_path / "vector.safetensors")
    named = score(folder, tmp_path / "out.csv", *arguments, base=tiny_base())
    assert named.returncode == 1
    assert "a task is called vector" in " ".join(named.stderr.split())
    for arguments in ((), ("--vectors", "--url", "http://127.0.0.1:1")):
        assert score(folder, tmp_path / "out.csv", *arguments, base=tiny_base()).returncode == 2
