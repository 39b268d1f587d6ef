"""`onebert score` from any format into one file, whole or not there, and how it reads tables."""

import json

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

import forked
from offline import SETTINGS, score_here
from servers import Task, assert_answers, clean_env
from written import read_rows

TONE = Task(labels=["good", "bad", "ugly"], seed=1)
ROWS = [
    {"id": i, "Text": f"order {i % 30} is late", "note": "@SUM(1+1)" if i % 2 else 'a;b\n"c"', "share": i / 4}
    for i in range(200)
]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "tone.safetensors"
    path.write_bytes(TONE.file)
    return path


@pytest.fixture
def write(task):
    def run(source, out, **options):
        score_here(out, task, source, **({"keep": ["*"], "all_scores": True} | options))
        return read_rows(out)

    return run


def scores_of(row):
    cell = row["tone_scores"]
    return json.loads(cell) if isinstance(cell, str) else dict(cell)


SOURCES = {
    "a.csv": lambda path: pandas.DataFrame(ROWS).to_csv(path, index=False, sep=";"),
    "a.jsonl.gz": lambda path: pandas.DataFrame(ROWS).to_json(path, orient="records", lines=True),
    "a.parquet": lambda path: pandas.DataFrame(ROWS).to_parquet(path),
    "a.xlsx": lambda path: pandas.DataFrame(ROWS).to_excel(path, index=False),
}


OUTS = [*zip(SOURCES, ["out.jsonl", "out.csv", "out.csv", "out.parquet"], strict=True)]


@pytest.mark.parametrize(("name", "out"), OUTS)
def test_every_row_stands_beside_its_answer(write, tmp_path, capfd, name, out):
    SOURCES[name](tmp_path / name)
    rows = write(tmp_path / name, tmp_path / out)
    assert f"200 rows in {tmp_path / out}, 0 without an answer\n" in capfd.readouterr().out
    assert [str(row["id"]) for row in rows] == [str(i) for i in range(200)]
    assert [row["Text"] for row in rows] == [row["Text"] for row in ROWS]
    # Also a cell that a spreadsheet may take for a formula is as it was.
    assert [row["note"] for row in rows] == [row["note"] for row in ROWS]
    assert [float(row["share"]) for row in rows] == [row["share"] for row in ROWS]
    expected = {text: TONE.scores(text) for text in {row["Text"] for row in ROWS}}
    for row in rows:
        answer = {"label": row["tone_label"], "score": float(row["tone_score"])}
        by_score = dict(sorted(scores_of(row).items(), key=lambda entry: -entry[1]))
        assert_answers({**answer, "scores": by_score}, expected[row["Text"]])
        assert row["error"] in (None, "")
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
    written = pyarrow.parquet.read_table(tmp_path / "b.parquet")
    for name in ("text", "when", "tags", "by", "price"):
        assert written.schema.field(name).type == table.schema.field(name).type, name
        assert str(written[name].to_pylist()) == str(table[name].to_pylist())
    assert written["kind"].to_pylist() == ["a", None]
    rows = write(tmp_path / "a.parquet", tmp_path / "b.jsonl")
    assert [row["price"] for row in rows] == [1.5, None]
    assert rows[0]["by"] == {"name": "n", "age": 3}


@pytest.mark.parametrize("out", ["b.csv", "b.jsonl", "b.parquet"])
def test_rows_that_cannot_be_answered_say_why_and_end_nothing(write, tmp_path, capfd, out):
    lines = [
        "[]",
        json.dumps({"text": ""}),
        json.dumps({"text": "my order is late", "extra": "\ud800", "more": "a\rb"}),
        json.dumps({"text": "x" * 65537}),
        *[json.dumps({"text": f"order {i}"}) for i in range(70)],
        json.dumps({"text": 7, "extra": [1, {"a": None}]}),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows = write(tmp_path / "a.jsonl", tmp_path / out)
    assert f"75 rows in {tmp_path / out}, 4 without an answer\n" in capfd.readouterr().out
    assert [row["error"] or "" for row in rows[:4]] == [
        "line 1: not a JSON object",
        "the text is blank",
        "",
        "the text is longer than 65536 characters",
    ]
    assert rows[-1]["error"] == "the text is not a text"
    assert json.loads(rows[-1]["extra"]) == [1, {"a": None}]
    # A lone carriage return stays within its cell.
    assert (rows[2]["extra"], rows[2]["more"]) == ("\\ud800", "a\rb")
    assert [row["text"] for row in rows[4:-1]] == [f"order {i}" for i in range(70)]
    assert {row["tone_label"] in TONE.manifest["labels"] for row in rows[4:-1]} == {True}


def test_a_file_without_a_row_has_its_columns(write, tmp_path):
    (tmp_path / "a.csv").write_text("text,more\n")
    for out in ("b.csv", "b.jsonl", "b.parquet"):
        assert write(tmp_path / "a.csv", tmp_path / out) == []
    assert (tmp_path / "b.csv").read_text().startswith("text,more,tone_label,tone_score,tone_scores,")


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("a.txt", "my order is late\r\nwhat now\r\n", {}, ["my order is late", "what now"]),
        ("b.jsonl", '{"text": "my order is late", "id": 7}\n{"text": "a"}\n', {}, ["my order is late", "a"]),
        ("c.csv", 'Label,Text\ngood,my order is late\nbad,"two\nlines"\n', {}, ["my order is late", "two\nlines"]),
        ("d.tsv", "id\tremark\tother\nx1\tmy order is late\tno\n", {"text": "remark"}, ["my order is late"]),
        ("e.csv", "text,text_pair\na,b\n", {}, [("a", "b")]),
        ("f.csv", "Text;Label\nDie Suppe war süß;gut\n".encode("cp1252"), {}, ["Die Suppe war süß"]),
    ],
    ids=["lines", "objects", "table", "named column", "pairs in a table", "a spreadsheet's"],
)
def test_texts_are_found_as_train_finds_them(write, tmp_path, name, content, options, expected):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = write(tmp_path / name, tmp_path / "out.jsonl", **options)
    for text, row in zip(expected, rows, strict=True):
        scores = TONE.scores(*((text,) if isinstance(text, str) else text))
        assert row["tone_scores"] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--data", "a.csv", "--out", "a.csv"], 1, "--out is a file that is read"),
        (["--data", "a.csv", "--out", "none/b.csv"], 1, "--out: there is no folder none"),
        (["--data", "again.csv", "--out", "b.csv", "--keep", "*"], 1, "two columns would be called tone_label"),
        (["--data", "open.csv", "--out", "b.csv"], 1, "open.csv line 3 is not CSV: a quote is left open"),
        (["--data", "nowhere.txt", "--out", "b.csv"], 1, "there is no data at nowhere.txt"),
        (["--data", "a.md", "--out", "b.csv"], 1, "a.md: the name ends in one of"),
        (["--data", "names.csv", "--out", "b.csv"], 1, "no text column; say which with --text (the columns are a, b)"),
    ],
)
def test_what_does_not_come_to_an_end_leaves_the_files_as_they_were(task, tmp_path, arguments, code, reason):
    (tmp_path / "a.csv").write_text("text\nmy order is late\n")
    (tmp_path / "a.md").write_text("my order is late\n")
    (tmp_path / "names.csv").write_text("a,b\n1,2\n")
    (tmp_path / "again.csv").write_text("text,tone_label\nmy order is late,x\n")
    (tmp_path / "open.csv").write_text('text,label\nfine,a\n"open,b\n')
    (tmp_path / "b.csv").write_text("as before")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    done = forked.run("score", "--task", task, *arguments, env=clean_env(**SETTINGS), cwd=tmp_path)
    assert done.returncode == code
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
