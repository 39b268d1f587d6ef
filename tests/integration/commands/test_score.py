"""`onebert score`: answers of the plain model, of `onebert.load` and of a server; kills that leave no trace."""

import gc
import json
import os
import signal
import subprocess
import sys
from copy import copy

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import onebert
from bases import tiny_base
from forked import Forked
from offline import SETTINGS, bytes_of, kill_and_go_on, rows_of, score_here
from onebert_store.errors import AliasNotFound, InvalidSettings, StoreLocked
from onebert_store.file.format import loads
from onebert_store.registry.registry import Registry
from servers import Task, clean_env, run_onebert, wait_until

WORDS = "the parcel was broken and nobody said sorry when my second order came very late too".split()
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
MODES = ("bitfit", "lora", "frozen", "everything")


@pytest.fixture(autouse=True)
def collector():
    """As it was: the command has it pass over what exists."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def text(i):
    rng = np.random.default_rng(i)
    return " ".join(rng.choice(WORDS, rng.integers(1, 70)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tasks of every type as files, and rows for them: one in eleven has no text, and some texts are there twice."""
    made = tmp_path_factory.mktemp("score")
    for name, task in TASKS.items():
        (made / f"{name}.safetensors").write_bytes(task.file)
    texts = [None if i % 11 == 5 else text(i % 150) for i in range(230)]
    table = pyarrow.table(
        {"id": [f"r{i}" for i in range(230)], "text": texts, "text_pair": [text(900 + i) for i in range(230)]}
    )
    pyarrow.parquet.write_table(table, made / "rows.parquet", row_group_size=70)
    return made


TASKS = {
    **{kind: Task(kind, "mean", labels=3, seed=i) for i, kind in enumerate(MODES)},
    "short": Task("frozen", "cls", labels=4, seed=7, max_length=12),
    "tags": Task("bitfit", "mean", labels=5, seed=8, task_type="multi_label"),
    "stars": Task("lora", "cls", labels=2, seed=9, task_type="regression"),
    "pos": Task("layernorm", "none", labels=["NOUN", "VERB", "X"], seed=10, task_type="token"),
    "ner": Task("spafit", "none", labels=BIO, seed=11, task_type="token"),
    "qa": Task("bitfit", "none", labels=["start", "end"], seed=12, task_type="span"),
}


def files(folder, *names):
    return [folder / f"{name}.safetensors" for name in names]


def input_rows(folder):
    return pyarrow.parquet.read_table(folder / "rows.parquet").to_pylist()


@pytest.fixture(scope="module")
def scored(folder, tmp_path_factory):
    """Every task that takes one text, over all rows, with every score."""
    out = tmp_path_factory.mktemp("scored")
    names = [name for name in TASKS if name != "qa"]
    score_here(out, files(folder, *names), folder / "rows.parquet", text="text", all_scores=True)
    return rows_of(out)


def same(cell, answered):
    """Whether a cell holds what was answered, with scores to 1e-4; it may hold more, such as the text of a word."""
    if isinstance(answered, dict):
        return all(same(cell[name], value) for name, value in answered.items())
    if isinstance(answered, list):
        return len(cell) == len(answered) and all(map(same, cell, answered))
    return cell == (pytest.approx(answered, abs=1e-4) if isinstance(answered, float) else answered)


def assert_as_in_python(rows, file, inputs):
    """Each row has what `onebert.load` answers to its input, and nothing where that is None; returns the answers."""
    classifier, name = onebert.load(file, base=str(tiny_base())), file.stem
    asked = [given for given in inputs if given is not None]
    answers = [onebert.as_dict(answer) for answer in classifier.classify(asked)]
    waiting = iter(answers)
    for row, given in zip(rows, inputs, strict=True):
        cells = {key.removeprefix(f"{name}_"): cell for key, cell in row.items() if key.startswith(f"{name}_")}
        if given is None:
            assert (row["error"], {*map(str, cells.values())}) == ("the text is missing", {"None"})
            continue
        answer = next(waiting)
        assert (row["error"], cells["digest"], cells["version"]) == (None, classifier.digest, None)
        assert cells.keys() & {"score", "words", "answers"}
        assert same(cells, {field: value for field, value in answer.items() if field in cells})
        read = given if isinstance(given, str) else given[1]
        for span in (*(cells.get("words") or ()), *(cells.get("answers") or ())):
            assert span["text"] == read[span["start"] : span["end"]]
    return answers


@pytest.mark.parametrize("name", [name for name in TASKS if name != "qa"])
def test_answers_are_those_of_the_classifier_in_python_and_of_the_plain_model(folder, scored, name):
    given = input_rows(folder)
    assert [row["id"] for row in scored] == [row["id"] for row in given]
    texts = [row["text"] for row in given]
    answers = assert_as_in_python(scored, folder / f"{name}.safetensors", texts)
    if name in ("short", "tags", "pos", "ner"):
        assert sum(answer["truncated"] for answer in answers) > 10
    if TASKS[name].manifest["task_type"] == "single_label":
        for row, one_text in zip(scored[:30], texts, strict=False):
            assert one_text is None or row[f"{name}_scores"] == pytest.approx(TASKS[name].scores(one_text), abs=1e-4)


def test_pairs_and_spans(folder, tmp_path):
    score_here(tmp_path / "out", files(folder, "qa", "bitfit"), folder / "rows.parquet", keep=("text_pair", "id"))
    rows, given = rows_of(tmp_path / "out"), input_rows(folder)
    assert list(rows[0])[:2] == ["text_pair", "id"]
    assert [row["text_pair"] for row in rows] == [row["text_pair"] for row in given]
    for file in files(folder, "qa", "bitfit"):
        assert_as_in_python(rows, file, [row["text"] and (row["text"], row["text_pair"]) for row in given])


def test_decisions_and_windows_are_those_of_the_classifier_in_python(folder, tmp_path):
    """Long and short texts mixed, of which those of one file go through batches together."""
    window = {"tokens": 16, "overlap": 4}
    decisions = {
        "bitfit": {"window": window | {"reduction": "max"}, "abstain": {"below": 0.5}, "thresholds": {"label 1": 0.3}},
        "tags": {"window": window | {"reduction": "mean"}, "temperature": 2.0, "abstain": {"energy": -1.5}},
        "stars": {"thresholds": {"label 1": 0.0}, "window": window | {"reduction": "mean"}},
        "lora": {"activation": "sigmoid", "temperature": 3.0},
        "ner": {"window": window | {"reduction": "union"}},
    }
    paths = [tmp_path / f"{name}.safetensors" for name in decisions]
    for path, decision in zip(paths, decisions.values(), strict=True):
        task = copy(TASKS[path.stem])
        task.manifest = task.manifest | {"format": 2, "decision": decision}
        path.write_bytes(task.file)
    score_here(tmp_path / "out", paths, folder / "rows.parquet", text="text", all_scores=True)
    texts = [row["text"] for row in input_rows(folder)]
    for name, path in zip(decisions, paths, strict=True):
        windows = {answer.get("windows") for answer in assert_as_in_python(rows_of(tmp_path / "out"), path, texts)}
        assert windows == {None} if "window" not in decisions[name] else max(windows) > 3


def test_versions_of_a_store_that_a_server_owns(folder, tmp_path):
    with Registry.open(tmp_path / "data") as registry:
        for kind in ("bitfit", "lora"):
            registry.add("mood", loads(TASKS[kind].file))
        registry.add("frozen", loads(TASKS["frozen"].file))
        registry.move_alias("mood", "next", 2, None)
        options = {"data_dir": tmp_path / "data", "text": "text"}
        rows = folder / "rows.parquet"
        score_here(tmp_path / "a", ["mood", "frozen"], rows, **options)
        score_here(tmp_path / "b", ["mood@next", "mood@1"], rows, **options)
        with pytest.raises(AliasNotFound, match="mood has no alias best"):
            score_here(tmp_path / "c", ["mood@best"], rows, **options)
    here, there = rows_of(tmp_path / "a"), rows_of(tmp_path / "b")
    assert {row["mood_version"] for row in here} == {1, None}
    assert {row["mood@2_digest"] for row in there} == {loads(TASKS["lora"].file).digest, None}
    assert [row["mood@1_score"] for row in there] == [row["mood_score"] for row in here]


def test_several_files_are_one_job(folder, tmp_path):
    for name, numbers in (("b", range(100, 250)), ("a", range(40))):
        table = pyarrow.table({"text": [text(i) for i in numbers]})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    score_here(tmp_path / "out", files(folder, "lora"), [tmp_path / "b.parquet", tmp_path / "a.parquet"])
    names = [name for name in bytes_of(tmp_path / "out") if name.startswith("part")]
    assert names == ["part-00000-00000.parquet", "part-00000-00001.parquet", "part-00001-00000.parquet"]
    assert [row["row"] for row in rows_of(tmp_path / "out")] == [*range(1, 151), *range(1, 41)]
    done = json.loads((tmp_path / "out/_done.json").read_text())
    assert done == {"parts": 3, "rows": 190, "errors": 0}


def test_another_job_is_not_gone_on_with(folder, tmp_path):
    out, rows = tmp_path / "out", tmp_path / "rows.csv"
    rows.write_text("id,text\n1,good\n")
    score_here(out, files(folder, "lora"), rows)
    before = bytes_of(out)
    score_here(out, files(folder, "lora"), rows)
    assert bytes_of(out) == before
    for tasks, options in ((["bitfit"], {}), (["lora"], {"all_scores": True}), (["lora"], {"part_rows": 7})):
        with pytest.raises(InvalidSettings, match=r"holds another job: (tasks|scores|part_rows) differ"):
            score_here(out, files(folder, *tasks), rows, **options)
    rows.write_text("id,text\n1,bad!\n")
    os.utime(rows, ns=(0, 0))
    with pytest.raises(InvalidSettings, match="holds another job: inputs differ"):
        score_here(out, files(folder, "lora"), rows)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x.txt").write_text("")
    with pytest.raises(InvalidSettings, match=r"x\.txt in it, and no _job\.json"):
        score_here(tmp_path / "full", files(folder, "lora"), rows)
    assert bytes_of(out) == before


# Parts of 50 rows: small enough that a kill comes in the middle of many of them.
MANY = 6000


@pytest.fixture(scope="module")
def many(folder):
    path = folder / "many.csv"
    path.write_text("id,text\n" + "".join(f"{i},{text(i % 700)} {i % 37}\n" for i in range(MANY)))
    return path


def command(folder, many, out, *more):
    tasks = [part for file in files(folder, "bitfit", "frozen") for part in ("--task", str(file))]
    return ["score", *tasks, "--data", str(many), "--out", str(out), "--part-rows", "50", *more]


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(folder, many, tmp_path):
    done = run_onebert(*command(folder, many, tmp_path / "whole"), **SETTINGS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"6,000 rows in 120 files in {tmp_path / 'whole'}, 0 without an answer\n"
    out = tmp_path / "killed"
    kill_and_go_on(
        command(folder, many, out),
        (1, 20, 21, 70),
        lambda: {path.name: path.stat().st_mtime_ns for path in out.glob("[_p]*")},
    )
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


# The kernel's own peak of this program; `ru_maxrss` would be that of the process that started it, where that is more.
MEASURED = """
import sys
from pathlib import Path
sys.argv[0] = "onebert"
from onebert_store.command.cli import main
try:
    main()
finally:
    print(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(folder, tmp_path):
    """Rows of 4 kB: the larger file has 160 MB, the smaller one 40."""
    peaks = []
    for rows in (10000, 40000):
        ids = [os.urandom(2048).hex() for _ in range(rows)]
        table = pyarrow.table({"id": ids, "text": [text(i % 300) for i in range(rows)]})
        pyarrow.parquet.write_table(table, tmp_path / f"{rows}.parquet")
        del ids, table
        task, data = files(folder, "bitfit")[0], tmp_path / f"{rows}.parquet"
        asked = ["--task", task, "--data", data, "--out", tmp_path / str(rows), "--part-rows", 2000]
        command = [sys.executable, "-c", MEASURED, "score", *map(str, asked)]
        done = subprocess.run(command, env=clean_env(**SETTINGS), capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] < peaks[0] + 60


def test_two_processes_do_not_score_into_one_folder(folder, many, tmp_path):
    out = tmp_path / "out"
    with Forked(*command(folder, many, out), env=clean_env(**SETTINGS)) as process:
        wait_until((out / "_job.json").exists)
        # Stopped, so that it is still at work however fast it is.
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreLocked):
            score_here(out, files(folder, "bitfit", "frozen"), many, part_rows=50)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("head", "--ray is the HOST:PORT of a cluster's head, or auto"),
        ("ray://127.0.0.1:1", "--ray is the HOST:PORT of a cluster's head, or auto"),
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
        (None, "--ray needs the package ray: pip install '.[ray]' in the checkout"),
    ],
)
def test_a_cluster_that_does_not_answer_is_one_line(onebert, monkeypatch, folder, tmp_path, address, message):
    if address is None:
        monkeypatch.setitem(sys.modules, "ray", None)
        for name in ("onebert_server.score.ray_cluster", "onebert_store.command.cluster"):
            monkeypatch.delitem(sys.modules, name, raising=False)
    asked = [*map(str, command(folder, folder / "rows.parquet", tmp_path / "out")), "--base", str(tiny_base())]
    status, printed, error = onebert(*asked, "--ray", address or "auto")
    assert (status, printed, error.splitlines()[-1]) == (1, "", f"error: {message}")
