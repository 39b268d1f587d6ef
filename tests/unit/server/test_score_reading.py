"""Files of rows as `onebert score` reads them: windows that depend on their rows alone, from any row on."""

import gzip
import json
from contextlib import ExitStack

import pandas
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

from onebert_server.score.reading import open_stream
from onebert_server.score.rows import ChosenColumns, choose_columns
from onebert_server.score.sources import find_sources
from onebert_server.score.tasks import find_tasks
from onebert_store.errors import InvalidData
from onebert_store.file.format import dumps
from onebert_store.registry.store import StoreAddress
from onebert_store.tables.columns import Columns
from tiny_delta import make_delta

TEXTS = [f"text number {i}" for i in range(500)]
TEXT = ChosenColumns(("text",), ("id",))


def parquet(path, columns, **options):
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def csv(path, texts=TEXTS):
    path.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    return path


def jsonl(path, texts=TEXTS):
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n\n" for i, text in enumerate(texts)))
    return path


def opened(stack, path, chosen=TEXT):
    [source] = find_sources([str(path)])
    stream = stack.enter_context(open_stream(source, None))
    if chosen is not None:
        stream.sample()
        stream.choose(chosen)
    return stream


def taken(path, chosen=TEXT):
    """All rows of a small file."""
    with ExitStack() as stack:
        return opened(stack, path, chosen).take(100)


def zipped(path):
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


@pytest.fixture(
    params=["groups of 7", "groups of 64", "one group", "no.csv", "no.jsonl", "no.csv.gz"], ids=lambda name: name
)
def path(request, tmp_path):
    if "group" in request.param:
        rows = {"one group": 500}.get(request.param) or int(request.param.split()[-1])
        return parquet(tmp_path / "x.parquet", {"id": [*map(str, range(500))], "text": TEXTS}, row_group_size=rows)
    made = (jsonl if "jsonl" in request.param else csv)(tmp_path / f"x.{request.param.split('.')[1]}")
    return zipped(made) if request.param.endswith(".gz") else made


@pytest.mark.parametrize("skipped", [0, 1, 7, 63, 64, 499, 500, 900])
def test_windows_are_the_same_rows_in_every_file_from_any_row_on(path, skipped):
    with ExitStack() as stack:
        stream = opened(stack, path)
        stream.skip(skipped)
        sizes, texts, ids = [], [], []
        while (rows := stream.take(100)).texts:
            sizes.append(len(rows.texts))
            texts += rows.texts
            ids += rows.ids["id"].to_pylist()
            assert rows.errors == [None] * len(rows.texts)
        assert texts == TEXTS[skipped:]
        assert ids == [str(i) for i in range(500)][skipped:]
        left = max(500 - skipped, 0)
        assert sizes == [100] * (left // 100) + [left % 100] * (left % 100 > 0)
        assert stream.row == 500
        assert stream.share == 1


@pytest.mark.parametrize("write", [csv, jsonl], ids=["csv", "jsonl"])
def test_long_texts_make_small_windows(tmp_path, write):
    """65,536 letters each: 4 MiB are 64 of them."""
    texts = ["x" * 2**16] * 70
    paths = [write(tmp_path / f"x.{write.__name__}", texts)]
    paths.append(parquet(tmp_path / "x.parquet", {"id": range(70), "text": texts}))
    for source in paths:
        with ExitStack() as stack:
            stream = opened(stack, source)
            assert [len(stream.take(1000).texts) for _ in range(3)] == [64, 6, 0]


def test_rows_that_are_no_texts_say_why(tmp_path):
    lines = [
        '{"id": 1, "text": "good"}',
        '{"id": null, "text": null}',
        '{"id": [3], "text": 4}',
        '{"id": "5", "text": " "}',
        '{"id": "\\ud800", "text": "\\ud800"}',
        "[]",
        '{"id": 7}',
        json.dumps({"id": 8, "text": "x" * 65537}),
        '{"id": "a\\ud83e", "text": "an id that Parquet cannot hold"}',
        '{"id": "b", "text": "\\u200b"}',
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines))
    rows = taken(path)
    assert rows.texts == ["good"] + [None] * 7 + ["an id that Parquet cannot hold", None]
    assert rows.ids["id"].to_pylist() == ["1", None, "[3]", "5", "\\ud800", None, "7", "8", "a\\ud83e", "b"]
    assert rows.errors == [
        None,
        "the text is missing",
        "the text is not a text",
        "the text is blank",
        "the text has half of a surrogate pair",
        "line 6: not a JSON object",
        "the text is missing",
        "the text is longer than 65536 characters",
        None,
        "the text is blank",
    ]


def test_bytes_in_parquet_that_are_not_utf8_cost_their_row_alone(tmp_path):
    stored = pyarrow.array([b"good", b"\xff\xfe", None])
    for broken in (stored.view(pyarrow.string()), stored, stored.dictionary_encode()):
        path = parquet(tmp_path / "x.parquet", {"text": broken})
        rows = taken(path, ChosenColumns(("text",), ()))
        assert rows.texts == ["good", None, None]
        assert rows.errors == [None, "the text is not UTF-8", "the text is missing"]
        assert rows.ids.to_pydict() == {"row": [1, 2, 3]}


def test_columns_are_found_by_name_and_kept_as_they_are(tmp_path):
    path = parquet(tmp_path / "x.parquet", {"Id": [7, 8], "when": [1.5, None], "Sentence": ["a", "b"]})
    with ExitStack() as stack:
        stream = opened(stack, path, None)
        assert choose_columns(stream.sample(), Columns(), (), "x") == ChosenColumns(("Sentence",), ("Id",))
        chosen = choose_columns(stream.sample(), Columns("sentence"), ("when", "id"), "x")
        assert chosen == ChosenColumns(("Sentence",), ("when", "Id"))
        stream.choose(chosen)
        assert stream.take(9).ids.to_pydict() == {"when": [1.5, None], "Id": [7, 8]}
        for columns, ids, message in ((Columns("no"), (), "no column no"), (Columns(), ("no",), "no column no")):
            with pytest.raises(InvalidData, match=message):
                choose_columns(stream.sample(), columns, ids, "x")


def test_files_of_a_folder_are_found_by_name(tmp_path):
    for name in ("b.csv", "a.jsonl.gz", "c.pdf", "_job.json", ".b.csv-x.csv", "labels.json", "dataset_info.json"):
        (tmp_path / name).write_text("")
    assert [source.name for source in find_sources([str(tmp_path)])] == ["a.jsonl.gz", "b.csv"]
    for address, message in (("nowhere.csv", "no data"), (tmp_path / "c.pdf", "ends in one of"), ("s3:///", "bucket")):
        with pytest.raises(InvalidData, match=message):
            find_sources([str(address)])
    with pytest.raises(InvalidData, match="given twice"):
        find_sources([str(tmp_path / "b.csv")] * 2)
    # The layout of the Hub.
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    names = ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]
    for name in names:
        parquet(hub / name, {"text": ["a"]})
    (hub.parent / "README.md").write_text("")
    assert [source.name for source in find_sources([str(hub.parent)])] == names


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    rows = [{"id": str(i), "text": f"größe {i}"} for i in range(40)]
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "a.csv", sep=";", encoding="cp1252", index=False)
    frame.to_csv(tmp_path / "b.tsv.gz", sep="\t", encoding="utf-16", index=False)
    frame.to_excel(tmp_path / "c.xlsx", index=False)
    frame.to_json(tmp_path / "d.json", orient="columns")
    frame.to_json(tmp_path / "e.jsonl", orient="records", lines=True)
    pyarrow.feather.write_feather(pyarrow.Table.from_pylist(rows), str(tmp_path / "f.arrow"))
    frame.to_parquet(tmp_path / "g.parquet")
    sources = find_sources([str(tmp_path)])
    assert len(sources) == 7
    for source in sources:
        with open_stream(source, None) as stream:
            assert choose_columns(stream.sample(), Columns(), (), source.name) == TEXT
            stream.choose(TEXT)
            table = stream.take(100)
        assert table.texts == [row["text"] for row in rows], source.name
        assert table.ids["id"].to_pylist() == [row["id"] for row in rows], source.name
        assert bool(stream.notes) == (source.name == "a.csv"), source.name


def test_columns_are_named_after_the_trained_task(tmp_path):
    store = StoreAddress("", "", tmp_path)
    for name, training in (("a-x", {"task": "tone"}), ("b", {"task": "Not A Name"}), ("c", {})):
        (tmp_path / f"{name}.safetensors").write_bytes(dumps(make_delta(training=training)))
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("a-x", "b", "c")]
    assert [task.name for task in find_tasks(paths, store)] == ["tone", "b", "c"]
    (tmp_path / "again.safetensors").write_bytes(dumps(make_delta(training={"task": "tone"})))
    assert [task.name for task in find_tasks([paths[0], str(tmp_path / "again.safetensors")], store)] == [
        "a-x",
        "again",
    ]


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "dictionary", "field"]
)
def test_texts_of_every_type(tmp_path, kind):
    cells = pyarrow.array(["a", None, "b"])
    name = "said.text" if kind == "field" else "text"
    if kind == "field":
        columns = {"said": [{"text": "a", "by": 1}, None, {"text": "b", "by": 2}]}
    else:
        columns = {"text": cells.dictionary_encode() if kind == "dictionary" else cells.cast(kind)}
    path = parquet(tmp_path / "x.parquet", columns)
    assert taken(path, ChosenColumns((name,), ())).texts == ["a", None, "b"]


@pytest.mark.parametrize(("column", "reason"), [("text", "holds int64, not texts"), ("other", "has no column other")])
def test_a_column_without_texts_is_refused(tmp_path, column, reason):
    path = parquet(tmp_path / "numbers.parquet", {"text": [1, 2]})
    with pytest.raises(InvalidData, match=reason):
        taken(path, ChosenColumns((column,), ()))
