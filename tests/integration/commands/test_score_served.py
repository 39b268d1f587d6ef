"""`onebert score --url`: a server's answers in the files that this machine would write."""

import pyarrow
import pyarrow.parquet
import pytest

from offline import rows_of, score_here
from onebert_server.score.command import ScoreOptions, run_score_by_server
from onebert_store.errors import AliasNotFound, InvalidInput, InvalidSettings, TaskNotFound
from servers import Task, run_onebert
from written import read_rows

WINDOW = {"tokens": 16, "overlap": 4, "reduction": "max"}
FILES = {
    "tone": Task("lora", "mean", labels=3, seed=1).file,
    "unsure": Task(seed=2, format=2, decision={"abstain": {"below": 0.5}, "thresholds": {"label 1": 0.3}}).file,
    "tags": Task(labels=5, seed=3, task_type="multi_label", format=2, decision={"window": WINDOW}).file,
    "stars": Task("lora", "cls", labels=2, seed=4, task_type="regression").file,
    "pos": Task("layernorm", "none", labels=["NOUN", "VERB", "X"], seed=5, task_type="token").file,
    "ner": Task("bitfit", "none", labels=["O", "B-x", "I-x"], seed=6, task_type="token").file,
    "qa": Task(
        *("bitfit", "none", ["start", "end"]),
        **{"seed": 7, "task_type": "span", "format": 2},
        decision={"window": WINDOW | {"tokens": 40}, "abstain": {"below": 0.4}},
    ).file,
}


@pytest.fixture(scope="module")
def folder(server, tmp_path_factory):
    """The tasks as files and as versions of the server, and rows, of which some have no text and some the same."""
    made = tmp_path_factory.mktemp("served")
    with server.client() as client:
        for name, file in FILES.items():
            (made / f"{name}.safetensors").write_bytes(file)
            client.push(name, file)
    texts = [None if i % 11 == 5 else f"ünder way {i % 90} " * (1 + i % 13) for i in range(250)]
    rows = {"id": [f"r{i}" for i in range(250)], "text": texts, "text_pair": ["my order was late"] * 250}
    pyarrow.parquet.write_table(pyarrow.table(rows), made / "rows.parquet")
    return made


def score_served(server, out, references, data, **options):
    defaults = {"text": None, "text_pair": None, "keep": (), "encoding": None, "all_scores": False, "part_rows": 100}
    run_score_by_server(ScoreOptions(references, [str(data)], str(out), **(defaults | options)), server.url, None)


def same(first, other):
    """Whether two values are equal, with scores to 1e-4."""
    if isinstance(first, float):
        return first == pytest.approx(other, abs=1e-4)
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(same(value, other[name]) for name, value in first.items())
    if isinstance(first, list):
        return len(first) == len(other) and all(map(same, first, other))
    return first == other


@pytest.mark.parametrize(
    ("names", "options"),
    [
        ([name for name in FILES if name != "qa"], {"text": "text", "all_scores": True}),
        (["tone", "qa"], {"keep": ["text_pair", "id"]}),
    ],
    ids=["texts", "pairs"],
)
def test_a_server_writes_what_this_machine_writes(server, folder, tmp_path, names, options):
    rows, files = folder / "rows.parquet", [folder / f"{name}.safetensors" for name in names]
    score_here(tmp_path / "here", files, rows, **options)
    score_served(server, tmp_path / "served", names, rows, **options)
    parts = [path.name for path in sorted(tmp_path.glob("here/part-*"))]
    assert [path.name for path in sorted(tmp_path.glob("served/part-*"))] == parts
    for part in parts:
        schemas = [pyarrow.parquet.read_schema(tmp_path / place / part) for place in ("here", "served")]
        assert schemas[0].equals(schemas[1])
    here, served = rows_of(tmp_path / "here"), rows_of(tmp_path / "served")
    assert len(here) == 250
    for row, other in zip(here, served, strict=True):
        for name in names:
            assert other.pop(f"{name}_version") == (1 if other[f"{name}_digest"] else None)
            del row[f"{name}_version"]
        assert same(row, other), (row, other)


def test_it_goes_on_with_the_same_versions_and_nothing_else(server, folder, tmp_path):
    with server.client() as client:
        client.push("moving", FILES["tone"])
    rows, out = folder / "rows.parquet", tmp_path / "out"
    score_served(server, out, ["moving"], rows, text="text")
    before = rows_of(out)
    (out / "part-00000-00001.parquet").unlink()
    score_served(server, out, ["moving@1"], rows, text="text")
    assert same(rows_of(out), before)
    with server.client() as client:
        client.push("moving", FILES["unsure"])
        client.move_alias("moving", "live", 2, 1)
    with pytest.raises(InvalidSettings, match="holds another job: tasks differ"):
        score_served(server, out, ["moving"], rows, text="text")
    (tmp_path / "moving.safetensors").write_bytes(FILES["tone"])
    with pytest.raises(InvalidSettings, match="holds another job: tasks, base, batch_tokens differ"):
        score_here(out, tmp_path / "moving.safetensors", rows, text="text")
    score_served(server, tmp_path / "both", ["moving@1", "moving@2"], rows, text="text")
    assert {row["moving@2_version"] for row in rows_of(tmp_path / "both")} == {None, 2}


def test_its_refusals(server, folder, tmp_path):
    rows = folder / "rows.parquet"
    for references, error, reason in (
        (["nobody"], TaskNotFound, "there is no task nobody"),
        (["tone@none"], AliasNotFound, "tone has no alias none"),
        ([str(folder / "tone.safetensors")], InvalidInput, "is a file; a server scores by versions"),
        (["pos"], InvalidInput, "pos is a token task and takes"),
    ):
        with pytest.raises(error, match=reason):
            score_served(server, tmp_path / "out", references, rows)
    asked = ["score", "--task", "tone", "--data", rows, "--out", tmp_path / "out", "--url", server.url]
    for option in ("--ray", "--base", "--dtype", "--device", "--data-dir"):
        done = run_onebert(*map(str, asked), option, "x")
        assert done.returncode == 2
        assert "are for scoring without --url" in " ".join(done.stderr.replace("│", "").split())
    assert not (tmp_path / "out").exists()


def test_the_command_asks_the_server_that_it_is_given(server, folder, tmp_path):
    out = tmp_path / "answers.jsonl"
    asked = ["--task", "tone", "--data", folder / "rows.parquet", "--text", "text", "--out", out, "--url", server.url]
    # A base that does not exist: nothing is computed here.
    done = run_onebert("score", *map(str, asked), base=tmp_path / "none")
    assert (done.returncode, done.stdout) == (0, f"250 rows in {out}, 23 without an answer\n")
    assert {row["tone_version"] for row in read_rows(out)} == {None, 1}
