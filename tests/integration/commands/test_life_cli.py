"""What becomes of a task on the command line: names, aliases, files, history, and two versions beside each other."""

import json
import subprocess

import pytest
from scipy.stats import binomtest

import forked
from onebert_server.client import Client
from servers import ONEBERT, Task, clean_env, run_onebert, wait_until

WORDS = "late broken lovely bad good great parcel invoice screen refund help password".split()
TEXTS = [f"{word} {other}" for word in WORDS[:6] for other in WORDS[6:]]


@pytest.fixture
def onebert(server):
    def run(*arguments, **more):
        done = run_onebert(*arguments, url=server.url, **more)
        # A command that takes half a minute says there how far it is.
        assert done.returncode == 0, done.stderr
        assert "error: " not in done.stderr
        return done.stdout

    return run


@pytest.fixture
def refused(server):
    def run(*arguments, **more):
        done = run_onebert(*arguments, url=server.url, **more)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) != (0, "", 0)
        assert done.stderr.startswith("error: ")
        return done.stderr

    return run


def push(server, name, *seeds, **manifest):
    tasks = [Task(seed=seed, **manifest) for seed in seeds]
    with server.client() as client:
        for task in tasks:
            client.push(name, task.file)
    return tasks


def test_aliases_are_listed_set_and_removed(server, onebert, refused):
    push(server, "aliased", 3, 4)
    assert "aliased@next: new → 2" in onebert("promote", "aliased", 2, "--alias", "next")
    onebert("promote", "aliased", 1, "--alias", "next")
    places = json.loads(onebert("status", "aliased", "--json"))["aliases"]
    assert [(place["alias"], place["version"], place["previous"]) for place in places] == [
        ("live", 1, None),
        ("next", 1, 2),
    ]
    assert "aliased@next: deleted" in onebert("delete", "aliased@next", "--message", "für nichts")
    onebert("delete", "aliased@2", "--message", "neither")
    with Client(server.url) as client:
        last = [(change.action, change.reason) for change in client.audit(task="aliased")[-2:]]
    assert last == [("delete-alias", "für nichts"), ("delete-version", "neither")]
    assert "version 2, neither" in onebert("audit", "--task", "aliased", "--url", server.url)
    assert "has no alias next" in refused("delete", "aliased@next")
    assert [place["alias"] for place in json.loads(onebert("status", "aliased", "--json"))["aliases"]] == ["live"]


def test_several_files_are_downloaded_and_what_is_there_is_passed_over(server, onebert, refused, tmp_path):
    first, second = push(server, "kept", 5, 6)
    (other,) = push(server, "kept-too", 7)
    folder = tmp_path / "files"
    folder.mkdir()
    onebert("download", "kept@live", "kept-too@1", "--out", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "kept-1.safetensors": first.file,
        "kept-too-1.safetensors": other.file,
    }
    printed = onebert("download", "kept", "--all", "--out", folder)
    assert f"{folder / 'kept-1.safetensors'}: is there already" in printed
    assert (folder / "kept-2.safetensors").read_bytes() == second.file
    (folder / "kept-2.safetensors").write_bytes(first.file)
    assert "exists; name another place" in refused("download", "kept", "--all", "--out", folder)
    assert (folder / "kept-2.safetensors").read_bytes() == first.file
    assert "is not a folder" in refused("download", "kept", "kept-too", "--out", tmp_path / "one")
    assert "there is no task nobody" in refused("download", "nobody", "--all")
    every = tmp_path / "every"
    every.mkdir()
    onebert("download", "--all", "--out", every)
    with server.client() as client:
        assert len(list(every.iterdir())) == sum(len(task["versions"]) for task in client.tasks())


def test_two_versions_are_held_against_each_other(server, onebert, tmp_path):
    a, b = push(server, "two", 16, 21, labels=["good", "bad"])
    rows = [(text, max(scores, key=scores.get)) for text in TEXTS if (scores := a.scores(text))]
    # Of every third row the label is the other: both versions are right and wrong somewhere.
    other = {"good": "bad", "bad": "good"}
    gold = [(text, other[label] if place % 3 == 0 else label) for place, (text, label) in enumerate(rows)]
    data = tmp_path / "rows.csv"
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in gold))
    record = json.loads(onebert("diff", "two@1", "two@2", "--data", data, "--json"))
    said_b = [max(scores, key=scores.get) for text, _ in rows if (scores := b.scores(text))]
    labels = list(zip((label for _, label in gold), (label for _, label in rows), said_b, strict=True))
    only_a = sum(right == first != two for right, first, two in labels)
    only_b = sum(right == two != first for right, first, two in labels)
    answers = record["answers"]
    assert min(only_a, only_b) > 0, "a test of nothing else"
    assert (answers["rows"], answers["only_a"], answers["only_b"]) == (36, only_a, only_b)
    assert [(flip["text"], flip["a"], flip["b"]) for flip in record["flips"]] == [
        (text, first, two) for (text, _), (_, first, two) in zip(rows, labels, strict=True) if first != two
    ]
    assert answers["labels"]["good"]["right_b"] == sum(right == two == "good" for right, _, two in labels)
    assert answers["p"] == pytest.approx(binomtest(only_a, only_a + only_b).pvalue)
    printed = onebert("diff", "two@1", "two@2", "--data", data)
    assert f"{len(record['flips'])} of 36 rows are answered differently" in printed
    first = record["flips"][0]
    heads = [line.split()[:2] for line in printed.splitlines()]
    # The rows of a CSV are found again by their lines.
    assert heads[heads.index(["line", "text"]) + 2] == [str(first["line"]), first["text"].split()[0]]
    assert "by McNemar's exact test" in printed


LABELED = {"labels": ["good", "bad", "odd"], "task_type": "multi_label"}


def test_what_is_right_is_read_as_evaluate_reads_it(server, onebert, refused, tmp_path):
    """By the separator that the training recorded, and in a column for each label."""
    a, _ = push(server, "read", 45, 32, **LABELED, training={"settings": {"label_separator": "|"}})
    order = LABELED["labels"]
    chosen = [[name for name, logit in zip(order, a.logits(text), strict=True) if logit > 0] for text in TEXTS]
    assert len({tuple(sorted(names)) for names in chosen}) > 2, "a test of nothing else"

    def write(name, cells):
        rows = [{"text": text, **cell} for text, cell in zip(TEXTS, cells, strict=True)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    hot = [{name: int(name in names) for name in order} for names in chosen]
    for source in (
        (write("names.jsonl", [{"label": "|".join(names)} for names in chosen]),),
        (write("columns.jsonl", hot), "--label", "good,bad,odd"),
    ):
        comparison = json.loads(onebert("diff", "read@1", "read@2", "--data", *source, "--json"))
        assert comparison["answers"]["right"]["a"] == len(TEXTS), source
    wrong = write("wrong.jsonl", [{"label": "good"}, *[{"label": "ugly"}] * (len(TEXTS) - 1)])
    message = refused("diff", "read@1", "read@2", "--data", wrong)
    assert "wrong.jsonl lines 2, 3" in message
    assert "the label 'ugly' is not one of the 3 known" in message
    assert "no column kind for --label (the columns are text, label)" in refused(
        "diff", "read@1", "read@2", "--data", wrong, "--label", "kind"
    )


def completed(line, **settings):
    """What a shell would offer for a command line, by the protocol of its completion script."""
    words = line.split(" ")
    variables = {"_ONEBERT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return forked.run(env=clean_env(**settings) | variables).stdout.split()


def test_a_shell_completes_commands_tasks_versions_and_aliases(server):
    push(server, "complete-me", 14, 15)
    assert "report" in completed("onebert re")
    # A shell waits for half a second at most; a busy server is asked again.
    wait_until(lambda: completed("onebert gate complete-", url=server.url) == ["complete-me"])
    wait_until(lambda: completed("onebert classify complete-", url=server.url) == ["complete-me"])
    versions = [f"complete-me@{ref}" for ref in ("live", 1, 2)]
    wait_until(lambda: completed("onebert diff complete-me@", url=server.url) == versions)
    assert completed("onebert promote x", url="http://127.0.0.1:9") == []
    # It asks which shell it was started by: this one stays there to be found.
    command = ["bash", "-c", f"{ONEBERT} --show-completion; exit $?"]
    shown = subprocess.run(command, env=clean_env(), capture_output=True, text=True, check=True)
    assert "_ONEBERT_COMPLETE" in shown.stdout
