"""`onebert classify --file … --out`: the input's rows beside their answers, whole or not there, in every format."""

import json
import re

import numpy as np
import openpyxl
import pandas
import pyarrow
import pyarrow.parquet
import pytest

import forked
from onebert_server.cli.classify.command import classify
from onebert_store.command import console
from servers import Task, assert_answers, clean_env, run_onebert
from written import read_rows

LABELS = ["good", "bad", "ugly"]
ROWS = [
    {"id": i, "Text": f"order {i % 30} is late", "note": "@SUM(1+1)" if i % 2 else 'a;b\n"c"', "share": i / 4}
    for i in range(200)
]


@pytest.fixture(scope="module")
def task(server):
    made = Task(labels=LABELS, seed=1)
    with server.client() as client:
        client.push("beside", made.file)
    return made


@pytest.fixture
def write(server, task):
    def run(source, out, *options, ref="beside"):
        done = run_onebert("classify", ref, "--file", source, "--out", out, *options, url=server.url)
        assert done.returncode == 0, done.stderr
        return done

    return run


def scores_of(row):
    found = row["beside_scores"]
    return json.loads(found) if isinstance(found, str) else dict(found)


SOURCES = {
    "a.csv": lambda path: pandas.DataFrame(ROWS).to_csv(path, index=False, sep=";"),
    "a.jsonl.gz": lambda path: pandas.DataFrame(ROWS).to_json(path, orient="records", lines=True),
    "a.parquet": lambda path: pandas.DataFrame(ROWS).to_parquet(path),
    "a.xlsx": lambda path: pandas.DataFrame(ROWS).to_excel(path, index=False),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("out", ["out.csv", "out.jsonl", "out.parquet"])
def test_every_row_stands_beside_its_answer(write, task, tmp_path, name, out):
    SOURCES[name](tmp_path / name)
    done = write(tmp_path / name, tmp_path / out)
    assert "200 rows in " in done.stdout
    assert ", 0 without an answer" in done.stdout
    found = read_rows(tmp_path / out)
    assert [str(row["id"]) for row in found] == [str(i) for i in range(200)]
    assert [row["Text"] for row in found] == [row["Text"] for row in ROWS]
    # Also a cell that a spreadsheet may take for a formula is as it was.
    assert [row["note"] for row in found] == [row["note"] for row in ROWS]
    assert [float(row["share"]) for row in found] == [row["share"] for row in ROWS]
    expected = {text: task.scores(text) for text in {row["Text"] for row in ROWS}}
    for row in found:
        assert_answers(
            {"label": row["beside_label"], "score": float(row["beside_score"]), "scores": scores_of(row)},
            expected[row["Text"]],
        )
        assert row["beside_error"] in (None, "")
    assert [path.name for path in tmp_path.iterdir() if path.name not in (name, out)] == []


def test_types_of_parquet_stay(write, tmp_path):
    table = pyarrow.table(
        {
            "text": ["my order is late", "fine"],
            "when": pyarrow.array([1, None], pyarrow.timestamp("us", tz="UTC")),
            "kind": pyarrow.array(["a", None]).dictionary_encode(),
            "tags": [["x"], []],
            "by": [{"name": "n", "age": 3}, None],
            "price": np.array([1.5, np.nan], np.float32),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    write(tmp_path / "a.parquet", tmp_path / "b.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "b.parquet")
    for name in ("text", "when", "tags", "by", "price"):
        assert found.schema.field(name).type == table.schema.field(name).type, name
        assert str(found[name].to_pylist()) == str(table[name].to_pylist())
    assert found["kind"].to_pylist() == ["a", None]
    write(tmp_path / "a.parquet", tmp_path / "b.jsonl")
    rows = read_rows(tmp_path / "b.jsonl")
    assert [row["price"] for row in rows] == [1.5, None]
    assert rows[0]["by"] == {"name": "n", "age": 3}


@pytest.mark.parametrize("out", ["b.jsonl", "b.csv"])
def test_numbers_that_json_lacks_are_null(write, tmp_path, out):
    rows = {"text": ["order 1 is late"], "vector": [[0.5, np.nan, -np.inf]], "of": [{"share": np.nan}], "one": [np.nan]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.parquet", tmp_path / out)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    if out.endswith(".csv"):
        [row] = read_rows(tmp_path / out)
        found = [json.loads(row[name], parse_constant=refuse) for name in ("vector", "of")]
    else:
        row = json.loads((tmp_path / out).read_text(), parse_constant=refuse)
        assert row["one"] is None
        found = [row["vector"], row["of"]]
    assert found == [[0.5, None, None], {"share": None}]


def test_rows_that_cannot_be_answered_say_why_and_end_nothing(write, tmp_path):
    lines = [
        "[]",
        json.dumps({"text": ""}),
        json.dumps({"text": "my order is late", "extra": "\ud800", "more": "a\rb"}),
        json.dumps({"text": "x" * 65537}),
        *[json.dumps({"text": f"order {i}"}) for i in range(70)],
        json.dumps({"text": 7, "extra": [1, {"a": None}]}),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    done = write(tmp_path / "a.jsonl", tmp_path / "b.csv")
    assert "75 rows in " in done.stdout
    assert "4 without an answer" in done.stdout
    found = read_rows(tmp_path / "b.csv")
    assert [row["beside_error"] for row in found[:4]] == [
        "line 1: not a JSON object",
        "line 2: the text is empty or not a text",
        "",
        "line 4: must have at most 65536 characters",
    ]
    assert found[-1]["beside_error"] == "line 75: the text is empty or not a text"
    assert json.loads(found[-1]["extra"]) == [1, {"a": None}]
    # A lone carriage return stays within its cell.
    assert (found[2]["extra"], found[2]["more"]) == ("\\ud800", "a\rb")
    assert [row["text"] for row in found[4:-1]] == [f"order {i}" for i in range(70)]
    assert {row["beside_label"] in LABELS for row in found[4:-1]} == {True}
    for name in ("b.parquet", "b.jsonl"):
        write(tmp_path / "a.jsonl", tmp_path / name)
        assert [row["beside_error"] or "" for row in read_rows(tmp_path / name)] == [
            row["beside_error"] for row in found
        ]


def test_a_file_of_nothing_but_bad_rows(write, tmp_path):
    (tmp_path / "a.csv").write_text("text\n \n \n")
    for name in ("b.csv", "b.jsonl", "b.parquet"):
        assert "2 rows in " in write(tmp_path / "a.csv", tmp_path / name).stdout
        assert [row["beside_error"] for row in read_rows(tmp_path / name)] == [
            f"line {line}: the text is empty or not a text" for line in (2, 3)
        ]


def test_columns_are_read_as_train_reads_them(write, task, tmp_path):
    book = openpyxl.Workbook()
    for row in (("Nr", "Customer Message", "Answer"), (1, "my order is late", "sorry"), (2, "what now", "wait")):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    write(
        tmp_path / "a.xlsx", tmp_path / "b.jsonl", "--text", "customer message", "--text-pair", "answer", "--top-k", 1
    )
    for row in read_rows(tmp_path / "b.jsonl"):
        scores = task.scores(row["Customer Message"], row["Answer"])
        best = max(scores, key=scores.get)
        assert row["beside_label"] == best
        assert row["beside_scores"] == {best: pytest.approx(scores[best], abs=1e-4)}
    (tmp_path / "a.txt").write_text("my order is late\n\nwhat now\n")
    write(tmp_path / "a.txt", tmp_path / "c.csv", ref="beside@1")
    assert [(row["line"], row["text"]) for row in read_rows(tmp_path / "c.csv")] == [
        ("1", "my order is late"),
        ("3", "what now"),
    ]


def test_windows_and_what_was_cut_are_said(server, write, tmp_path):
    long = "order " * 100
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("order", long)))
    done = write(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert [row["beside_truncated"] for row in read_rows(tmp_path / "b.jsonl")] == [False, True]
    assert "note: of 1 text over the task's longest input the end was not read" in done.stderr
    for name in ("c.jsonl", "c.parquet", "c.csv"):
        done = write(tmp_path / "a.jsonl", tmp_path / name, "--window", "16,4")
        assert [int(row["beside_windows"]) for row in read_rows(tmp_path / name)] == [1, 10]
        assert "the end was not read" not in done.stderr


def test_one_line_at_a_time_says_how_far_it_is(server, task, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.001)
    (tmp_path / "a.txt").write_text("".join(f"order {i} is late\n" for i in range(500)))
    classify("beside", file=tmp_path / "a.txt", out=tmp_path / "b.csv", url=server.url)
    forms = {re.sub(r"[\d,]+", "N", line) for line in capfd.readouterr().err.splitlines()}
    assert forms <= {"classifying rows: N"}


def test_words_say_what_stands_there(server, write, tmp_path):
    made = Task(task_type="token", pooling="none", labels=["O", "B-x", "I-x"], seed=30)
    with server.client() as client:
        client.push("tagging", made.file)
    (tmp_path / "a.csv").write_text("text\nünder way\n")
    for name in ("b.jsonl", "b.parquet", "b.csv"):
        write(tmp_path / "a.csv", tmp_path / name, ref="tagging")
        [row] = read_rows(tmp_path / name)
        words = row["tagging_words"]
        for word in json.loads(words) if isinstance(words, str) else words:
            assert word["text"] == "ünder way"[word["start"] : word["end"]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["beside", "--file", "a.csv", "--out", "b.txt"], 2, "--out ends in one of .csv, .jsonl, .parquet"),
        (["beside", "--file", "a.csv", "--out", "a.csv"], 2, "--out is the file that is read"),
        (["beside", "x", "--out", "b.csv"], 2, "--out goes with --file"),
        (["beside", "--file", "a.csv", "--out", "b.csv", "--json"], 2, "--out goes with --file, and without --json"),
        (["nobody", "--file", "a.csv", "--out", "b.csv"], 1, "there is no task nobody"),
        (["beside", "--file", "a.csv", "--out", "none/b.csv"], 1, "none/b.csv: No such file"),
        (["beside", "--file", "again.csv", "--out", "b.csv"], 1, "two columns would be called beside_label"),
        (["beside", "--file", "many.csv", "--out", "b.csv", "--window", "60000"], 1, "and a window of it no more"),
        (["beside", "--file", "many.csv", "--out", "b.csv", "--top-k", "5000"], 1, "top_k: must be at most 4096"),
        (["beside", "--file", "open.csv", "--out", "b.csv"], 1, "open.csv line 3 is not CSV: a quote is left open"),
    ],
)
def test_nothing_is_left_where_it_does_not_come_to_an_end(server, task, tmp_path, arguments, code, said):
    (tmp_path / "a.csv").write_text("text\nmy order is late\n")
    (tmp_path / "again.csv").write_text("text,beside_label\nmy order is late,x\n")
    (tmp_path / "many.csv").write_text("text\n" + "my order is late\n" * 100)
    (tmp_path / "open.csv").write_text('text,label\nfine,a\n"open,b\n')
    (tmp_path / "b.csv").write_text("as before")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    done = forked.run("classify", *arguments, env=clean_env(url=server.url), cwd=tmp_path)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
