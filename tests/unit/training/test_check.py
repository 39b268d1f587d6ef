"""`onebert check`: all that is wrong at once, counted as a plain loop counts it, and with the verdict of training."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bases import CONFIGS, tiny_base
from onebert_encoder.base.base import load_base
from onebert_encoder.base.config import read_config
from onebert_encoder.base.tokenizer import load_tokenizer
from onebert_store.errors import InvalidData, InvalidSettings, UnsupportedBase
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source
from onebert_training.cli import check
from onebert_training.commands.check import _lengths
from onebert_training.data.dataset import load_dataset
from onebert_training.data.examination import MAX_LISTED, examine
from onebert_training.data.options import DataOptions
from trainings import invoke


def run(*arguments):
    done = invoke(check, *arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def facts(*arguments):
    done = run(*arguments, "--json")
    record = json.loads(done.stdout)
    assert done.exit_code == (0 if record["trainable"] else 1)
    return record


def write(path, rows, header="text,label"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


GOOD = [f"my order {i} is late,{'ab'[i % 2]}" for i in range(40)]


def test_everything_is_said_at_once(tmp_path):
    bad = ["one cell", " ,a", "no label,", "a,b,c"]
    write(tmp_path / "train.csv", [*GOOD, GOOD[0], "my order 1 is late,a", "rare,c", *bad])
    write(tmp_path / "validation.csv", ["my order 2 is late,a", "new,b"])
    write(tmp_path / "test.csv", ["new,b", "my order 2 is late,a", "newer,a", "t,unknown"])
    record = facts(tmp_path)
    assert not record["trainable"]
    assert record["duplicates"] == {"train": 1, "validation": 0, "test": 0}
    assert record["contradictions"] == {"texts": 1, "first": ["train.csv lines 3 and 43"]}
    assert [(leak["split"], leak["of"], leak["rows"]) for leak in record["leaks"]] == [
        ("validation", "train", 1),
        ("test", "train", 1),
        ("test", "validation", 2),
    ]
    assert record["few"] == {"c": 1}
    bad = {(row["file"], row["line"]): row["what"] for row in record["bad"]["first"]}
    assert bad == {
        ("train.csv", 45): "1 cell under 2 columns",
        ("train.csv", 46): "the text is empty or not a text",
        ("train.csv", 47): "there is no label (--drop-unlabeled leaves such rows out)",
        ("train.csv", 48): "3 cells under 2 columns",
        ("test.csv", 5): "the label 'unknown' is not one of the 3 known (a, b, c)",
    }
    assert record["bad"]["rows"] == 5
    shown = run(tmp_path).stdout
    assert "bad: train.csv line 46: the text is empty" in shown
    assert "texts with different answers: 1: train.csv lines 3 and 43" in shown
    assert shown.count("the text is empty") == 1  # each bad row is listed once
    assert "refused: 5 bad rows\n" in shown


def test_rows_without_any_of_the_labels_are_counted_where_one_looks(tmp_path):
    rows = [{"text": f"order {i}", "labels": ["late"] if i % 4 else []} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = run(tmp_path / "a.jsonl", "--label", "labels").stdout
    assert "rows of train without any of the labels: 10\n" in shown


def test_a_file_that_breaks_off_at_its_first_row_is_refused_for_that_alone(tmp_path):
    rows = ['"never again,bad', 'they said fine",good', *GOOD]
    [refused] = facts(write(tmp_path / "a.csv", rows))["refused"]
    assert refused.startswith("a.csv line 2: a quote opens a cell over 2 lines")
    # What could be read before is looked at all the same.
    record = facts(write(tmp_path / "b.csv", ["one cell", *GOOD, '"open,a']))
    assert record["rows"] == {"train": 40}
    assert [row["line"] for row in record["bad"]["first"]] == [2]
    assert any("b.csv line 43 is not CSV: a quote is left open" in why for why in record["refused"])


def test_of_cells_of_which_none_is_a_number_no_numbers_are_described(tmp_path):
    shown = run(write(tmp_path / "a.csv", [f't{i},"{i},50 €"' for i in range(40)]), "--task-type", "regression").stdout
    assert "bad: a.csv lines 2-41: the label is not a number, or too large, as '0,50 €'" in shown
    assert "numbers:" not in shown


def test_who_has_one_text_with_two_labels_is_told_how_to_find_wrong_ones(tmp_path):
    torn = write(tmp_path / "torn.csv", [*GOOD, "twice the same,a", "twice the same,b"])
    assert run(torn).stdout.endswith(f"next: onebert check {torn} --labels\n")
    assert "--labels" not in run(write(tmp_path / "good.csv", GOOD)).stdout


def test_many_bad_rows_are_counted_and_some_listed(tmp_path):
    record = facts(write(tmp_path / "a.csv", [*GOOD, *["x"] * 1050, *[",a"] * 50]))
    assert record["bad"]["rows"] == 1100
    assert len(record["bad"]["first"]) == MAX_LISTED
    assert "bad: and 100 more rows" in run(tmp_path / "a.csv").stdout


def test_bad_rows_are_listed_by_file_and_what_is_wrong(tmp_path):
    write(tmp_path / "train-00000-of-00002.csv", [*GOOD, "x", ",a", "y", "z", "w"])
    write(tmp_path / "train-00001-of-00002.csv", [",a", "my order is lost,a", ",b"])
    shown = [line for line in run(tmp_path).stdout.splitlines() if line.startswith("bad: ")]
    assert shown == [
        "bad: train-00000-of-00002.csv lines 42, 44-46: 1 cell under 2 columns",
        "bad: train-00000-of-00002.csv line 43: the text is empty or not a text",
        "bad: train-00001-of-00002.csv lines 2, 4: the text is empty or not a text",
    ]
    places = [(row["file"], row["line"]) for row in facts(tmp_path)["bad"]["first"]]
    assert places == [
        *(("train-00000-of-00002.csv", line) for line in range(42, 47)),
        *(("train-00001-of-00002.csv", line) for line in (2, 4)),
    ]


def test_a_mended_copy_is_what_pandas_makes_of_the_file(tmp_path):
    rows = [
        "1,late,Billing",
        "2,late,billing",
        "3,gone,billing ",
        "4,late,tech",
        "5,gone,BILLING",
        '6,"a, ""b""\nc",tech',
    ]
    source = write(tmp_path / "a.csv", [*rows, *(f"{i + 7},{row}" for i, row in enumerate(GOOD))], "id,text,label")
    before, out = source.read_bytes(), tmp_path / "b.csv"
    record = facts(source, "--fold-labels", "--drop-duplicates", "--out", out)
    assert source.read_bytes() == before
    frame = pd.read_csv(source, dtype=str)
    frame["label"] = frame["label"].str.strip().str.lower()
    frame = frame.drop_duplicates(["text", "label"])
    pd.testing.assert_frame_equal(pd.read_csv(out, dtype=str), frame.reset_index(drop=True))
    assert record["mended"] == {
        "out": str(out),
        "rows": len(frame),
        "folded": {"Billing": "billing", "BILLING": "billing"},
        "changed": 3,
        "dropped": {"rows": 2, "first": [{"file": "a.csv", "line": 3}, {"file": "a.csv", "line": 6}]},
        "unreadable": 0,
    }
    # What still contradicts is named by its lines in the file that was read.
    assert record["contradictions"] == {"texts": 1, "first": ["a.csv lines 2 and 5"]}
    again = facts(out, "--fold-labels", "--drop-duplicates", "--out", tmp_path / "c.csv")["mended"]
    assert (again["folded"], again["dropped"]["rows"]) == ({}, 0)
    shown = run(source, "--drop-duplicates", "--out", tmp_path / "d.jsonl").stdout
    assert "dropped:" not in shown  # three spellings are three labels
    assert f"written: {tmp_path / 'd.jsonl'}, rows: 46; 0 labels changed, 0 repeated and 0 unreadable" in shown


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_lists_of_labels_are_folded_in_their_own_form(tmp_path, ending):
    cells = [["Late", "size"], ["late", "Late"], ["late"], ["late", "size"], []] * 8
    rows = [{"text": f"order {i}", "labels": cell} for i, cell in enumerate(cells)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / f"b{ending}"
    facts(tmp_path / "a.jsonl", "--fold-labels", "--out", out)
    copy = load_dataset(str(out), DataOptions(task_type="multi_label"))
    assert copy.labels == ("late", "size")
    gold = np.array([[name in {each.lower() for each in cell} for name in copy.labels] for cell in cells])
    texts = [text for split in copy.splits.values() for text in split.texts]
    got = np.concatenate([split.gold for split in copy.splits.values()]) > 0
    assert {text: tuple(row) for text, row in zip(texts, got.tolist(), strict=True)} == {
        row["text"]: tuple(flags) for row, flags in zip(rows, gold.tolist(), strict=True)
    }


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--fold-labels"], "--fold-labels and --drop-duplicates write a mended copy: --out goes with them"),
        (["--out", "b.csv"], "--fold-labels and --drop-duplicates write a mended copy: --out goes with them"),
        (["--fold-labels", "--out", "b.txt"], "--out ends in one of .csv, .jsonl, .parquet"),
        (["--fold-labels", "--out", "a.csv"], "--out is a file that is read"),
        (["--fold-labels", "--out", "no/b.csv"], "--out: there is no folder no"),
        (
            ["--fold-labels", "--task-type", "regression", "--out", "b.csv"],
            "--fold-labels is for labels of whole texts, not for a regression task",
        ),
        (
            ["--fold-labels", "--label", "nope", "--out", "b.csv"],
            "a.csv: no column nope for --label (the columns are text, label)",
        ),
    ],
)
def test_what_cannot_be_mended_is_one_sentence_and_nothing_is_written(tmp_path, monkeypatch, options, why):
    monkeypatch.chdir(tmp_path)
    before = write(tmp_path / "a.csv", GOOD).read_bytes()
    done = invoke(check, "a.csv", *options)
    assert isinstance(done.exception, InvalidData | InvalidSettings)
    assert done.exception.detail == why
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.csv": before}


def test_a_folder_and_a_file_that_breaks_off_are_not_mended(tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder/train.csv", GOOD)
    broken = write(tmp_path / "a.csv", [*GOOD, '"open,a'])
    for data, why in ((tmp_path / "folder", "name the files of the folder"), (broken, "a quote is left open")):
        done = invoke(check, data, "--drop-duplicates", "--out", tmp_path / "b.csv")
        assert why in done.exception.detail
        assert not (tmp_path / "b.csv").exists()


WORD = st.sampled_from(["late", "broken", "good", "fine", "bad", ""])


@given(
    train=st.lists(st.tuples(WORD, st.sampled_from(["a", "b", ""])), min_size=10, max_size=30),
    test=st.lists(st.tuples(WORD, st.sampled_from(["a", "b", "c"])), min_size=1, max_size=6),
)
def test_counts_are_those_of_a_plain_loop_and_the_verdict_is_that_of_training(train, test):
    def source():
        return Source(
            "x",
            {
                name: Table({"text": [text for text, _ in rows], "label": [label for _, label in rows]}, name)
                for name, rows in (("train", train), ("test", test))
            },
        )

    record = examine(
        source(), DataOptions(), 9, lambda texts: _lengths(load_tokenizer(str(tiny_base()))[0], texts)
    ).facts
    try:
        load_dataset(source(), keep_few=True)
        refused = False
    except InvalidData:
        refused = True
    assert bool(record["refused"]) == refused
    if "splits" not in record:
        return
    labels = {label for _, label in train if label}
    good = [(text, label) for text, label in train if text and label]
    tested = [(text, label) for text, label in test if text and label in labels]
    assert record["bad"]["rows"] == len(train) - len(good) + len(test) - len(tested)
    assert record["splits"]["train"]["labels"] == {name: Counter(label for _, label in good)[name] for name in labels}
    assert record["duplicates"]["train"] == len(good) - len(set(good))
    texts = {text for text, _ in good}
    assert record["contradictions"]["texts"] == sum(
        len({label for text, label in rows if text == distinct}) > 1
        for rows in (good, tested)
        for distinct in {t for t, _ in rows}
    )
    assert sum(leak["rows"] for leak in record["leaks"]) == sum(text in texts for text, _ in tested)


@pytest.mark.parametrize("family", CONFIGS)
def test_lengths_are_those_of_the_tokens_that_an_encoder_gets(family):
    tokenizer, longest = load_tokenizer(str(tiny_base(family)))
    base = load_base(str(tiny_base(family)))
    texts = ["my order is late", "x", ("what is late", "my order " * 7), "parcel " * 50]
    assert _lengths(tokenizer, texts).tolist() == [len(tokens) for tokens in base.tokenizer.encode(texts, 10**6)]
    assert longest == base.spec.max_length


@pytest.mark.parametrize("broken", ["no tokenizer.json", "no pad_token_id", "no max_position_embeddings"])
def test_what_the_files_of_a_base_lack_is_read_as_it_is_loaded(broken, tmp_path):
    folder = shutil.copytree(tiny_base("roberta"), tmp_path / "base")
    if broken == "no tokenizer.json":
        (folder / "tokenizer.json").unlink()
        with pytest.raises(UnsupportedBase, match="no tokenizer"):
            load_tokenizer(str(folder))
        return
    config = json.loads((folder / "config.json").read_text())
    del config[broken.removeprefix("no ")]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(str(folder))[1] == read_config(folder)[0].max_length


def test_a_check_imports_no_torch(tmp_path):
    """It took six seconds of a processor to read."""
    write(tmp_path / "a.csv", GOOD)
    code = (
        "import atexit, sys; from onebert_store.command.cli import main;"
        "atexit.register(lambda: print('imported', {'torch', 'sklearn', 'scipy', 'transformers'} & {*sys.modules}));"
        f"sys.argv = {['onebert', 'check', 'a.csv', '--base', str(tiny_base())]!r}; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported set()"


def test_cut_texts_are_counted(tmp_path):
    record = facts(write(tmp_path / "a.csv", [*GOOD, "late " * 100 + ",a"]), "--max-length", 16)
    tokens = record["splits"]["train"]["tokens"]
    assert (tokens["max_length"], tokens["cut"], tokens["cut_share"]) == (16, 1, round(1 / 41, 6))
    assert tokens["longest"] > 100 >= tokens["p95"]


def test_bad_rows_stay_in_the_copy_and_unreadable_ones_are_left_out(tmp_path):
    source = write(tmp_path / "a.csv", [*GOOD, ",a", "one cell", "no label,"])
    done = run(source, "--drop-duplicates", "--out", tmp_path / "b.csv")
    assert done.exit_code == 1
    assert "rows: 42; 0 labels changed, 0 repeated and 1 unreadable left out" in done.stdout
    assert run(source, "--drop-duplicates", "--drop-empty", "--drop-unlabeled", "--out", tmp_path / "b.csv").exit_code
    assert facts(tmp_path / "b.csv")["rows"] == {"train": 40}
