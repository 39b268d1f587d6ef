"""The commands that talk to a server: what they print, what scripts read, and how they fail."""

import json
import os
import subprocess

import pytest
import typer

from onebert_store.cli import build_app
from servers import ONEBERT, Server, Task, assert_answers, clean_env, run_onebert

TEXTS = ["my order is late", "the parcel was broken", "what a good day"]


@pytest.fixture(scope="module")
def onebert(server):
    """Runs a command against the server and expects it to succeed."""

    def run(*arguments, **more):
        done = run_onebert(*arguments, url=server.url, **more)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture(scope="module")
def task(server):
    made = Task(labels=["good", "bad", "ugly"], seed=1)
    with server.client() as client:
        client.push("mood", made.file)
    return made


@pytest.fixture
def file(tmp_path):
    """Writes a delta file and returns its path."""

    def write(**manifest):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors"
        path.write_bytes(Task(**manifest).file)
        return path

    return write


def test_push_takes_the_task_from_the_file(onebert, server, file):
    path = file(seed=2, training={"task": "from-file"})
    assert "from-file: 0.safetensors is version 1 (sha256:" in onebert("push", path)
    assert "was already version 1" in onebert("push", path)
    with server.client() as client:
        assert client.task("from-file")["aliases"] == {"live": 1}


def test_push_for_scripts(onebert, file):
    first, second = file(seed=3), file(seed=4)
    pushed = json.loads(onebert("push", first, "--task", "scripted", "--json"))
    assert (pushed["task"], pushed["version"], pushed["created"]) == ("scripted", 1, True)
    pushed = json.loads(onebert("push", second, "--task", "scripted", "--promote", "--json"))
    assert pushed["promoted"] == {"task": "scripted", "alias": "live", "from": 1, "to": 2}


def test_promote_and_roll_back(onebert, server, file):
    for seed in range(5, 9):
        onebert("push", file(seed=seed), "--task", "moving")
    out = onebert("promote", "moving", 4)
    assert "moving@live: 1 → 4" in out
    assert "onebert promote moving 1" in out
    assert "live → 4 (before: 1)" in onebert("tasks")
    assert "moving@live: 4 → 1" in onebert("promote", "moving", "--rollback")
    assert "moving@live: 1 → 4" in onebert("promote", "moving", "--rollback")
    assert "moving@canary: new → 3" in onebert("promote", "moving", 3, "--alias", "canary")
    onebert("promote", "moving", 2, "--alias", "canary")
    moved = json.loads(onebert("promote", "moving", "--rollback", "--alias", "canary", "--json"))
    assert moved == {"task": "moving", "alias": "canary", "from": 2, "to": 3}
    assert "is at version 4 already" in onebert("promote", "moving", 4)
    with server.client() as client:
        assert client.task("moving")["aliases"] == {"canary": 3, "live": 4}
        client.delete_version("moving", 1)
    _assert_fails(
        run_onebert("promote", "moving", "--rollback", url=server.url), 1, "at version 1 before, which is del"
    )


def test_tasks_lists_and_describes(onebert, task):
    out = onebert("tasks")
    assert "mood" in out
    assert "live → 1" in out
    assert "bitfit" in onebert("tasks", "mood")
    listed = json.loads(onebert("tasks", "--json"))
    assert {"name": "mood", "aliases": {"live": 1}, "previous": {}, "versions": [1]} in listed
    described = json.loads(onebert("tasks", "mood", "--json"))
    assert described["versions"][0]["labels"] == 3


def test_classify_arguments(onebert, task):
    out = onebert("classify", "mood", *TEXTS)
    for text in TEXTS:
        scores = task.scores(text)
        line = next(line for line in out.splitlines() if text in line)
        assert max(scores, key=scores.get) in line
        assert f"{max(scores.values()):.3f}" in line


def test_classify_for_scripts_from_standard_input(onebert, task):
    texts = [f"order {i} is late" for i in range(70)]
    out = onebert("classify", "mood@1", "--json", stdin="\n".join(texts) + "\n")
    results = [json.loads(line) for line in out.splitlines()]
    assert len(results) == len(texts)
    for text, result in zip(texts, results, strict=True):
        assert (result["task"], result["version"]) == ("mood", 1)
        assert_answers(result, task.scores(text))


def test_classify_files_of_lines_and_of_objects(onebert, task, tmp_path):
    lines, objects, pairs = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.tsv"
    lines.write_bytes(b"my order is late\r\nwhat now\r\n")
    objects.write_text('{"text": "my order is late", "id": 7}\n{"text": "a", "text_pair": "b"}\n')
    pairs.write_text("a\tb\n")
    for path, option, expected in (
        (lines, [], [("my order is late",), ("what now",)]),
        (objects, [], [("my order is late",), ("a", "b")]),
        (pairs, ["--pair"], [("a", "b")]),
    ):
        out = onebert("classify", "mood", "--file", path, "--json", *option)
        results = [json.loads(line) for line in out.splitlines()]
        for texts, result in zip(expected, results, strict=True):
            assert_answers(result, task.scores(*texts))


def test_classify_skips_blank_lines_and_keeps_what_came_before_an_error(server, task):
    lines = [f"order {i} is late\n \n" for i in range(64)]
    for options in ([], ["--json"]):
        stdin = "".join(lines) + "x" * 65537
        done = run_onebert("classify", "mood", *options, stdin=stdin, url=server.url)
        _assert_fails(done, 1, "at most 65536 characters")
        assert all(f"order {i} is late" in done.stdout for i in range(64)) or options
        assert done.stdout.count("\n") >= 64


def test_classify_shows_progress_beside_results_that_are_piped(server, task, tmp_path):
    """Standard error is a terminal, standard output is not: what is on one is not on the other."""
    path = tmp_path / "texts.txt"
    path.write_text("my order is late\n" * 70)
    ours, theirs = os.openpty()
    command = [ONEBERT, "classify", "mood", "--json", "--file", path]
    env = clean_env(url=server.url) | {"TERM": "xterm"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True) as running:
        os.close(theirs)
        results = [json.loads(line) for line in running.stdout]
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert len(results) == 70
    assert "classifying" in shown
    assert "label" not in shown


def test_classify_pairs_and_top_k(onebert, task):
    out = onebert("classify", "mood", "--pair", "--top-k", 2, "--json", "a", "b", "c", "d")
    for texts, line in zip([("a", "b"), ("c", "d")], out.splitlines(), strict=True):
        scores = task.scores(*texts)
        assert_answers(json.loads(line), dict(sorted(scores.items(), key=lambda entry: -entry[1])[:2]))


def test_texts_cannot_write_to_the_terminal(onebert, task):
    out = onebert("classify", "mood", "\x1b[2J[red]bold[/red] :smile:")
    assert "\x1b" not in out
    assert "[red]bold[/red] :smile:" in out


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "reason"),
    [
        (["classify", "nobody", "x"], "", 1, "there is no task nobody"),
        (["classify", "mood@9", "x"], "", 1, "mood has no version 9"),
        (["classify", "Bad Name", "x"], "", 1, "is not a name"),
        (["classify", "mood", "--pair"], "a\tb\n\na\t \n", 1, "line 3 does not hold two texts"),
        (["classify", "mood", "--pair"], "one\n", 1, "line 1 does not hold two texts"),
        (["classify", "mood", "--pair", "one"], "", 2, "even number"),
        (["classify", "mood", "--file", "nowhere.txt"], "", 1, "cannot be read"),
        (["classify", "mood", "x", "--file", "nowhere.txt"], "", 2, "not both"),
        (["classify", "mood", " "], "", 1, "blank"),
        (["tasks", "nobody"], "", 1, "there is no task nobody"),
        (["promote", "mood"], "", 2, "give a VERSION, or --rollback"),
        (["promote", "mood", "1", "--rollback"], "", 2, "give a VERSION, or --rollback"),
        (["promote", "mood", "--rollback"], "", 1, "never at another version"),
        (["promote", "mood", "--rollback", "--alias", "none"], "", 1, "never at another version"),
        (["promote", "mood", "9"], "", 1, "mood has no version 9"),
        (["push", "nowhere.safetensors"], "", 1, "read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_failures_are_one_clear_line(server, task, arguments, stdin, code, reason):
    _assert_fails(run_onebert(*arguments, stdin=stdin, url=server.url), code, reason)


def test_push_refuses_without_a_task_and_what_the_server_refuses(server, file):
    _assert_fails(run_onebert("push", file(seed=20), url=server.url), 1, "use --task")
    foreign = {"name": "other", "model_type": "bert", "digest": "sha256:" + "0" * 64}
    path = file(seed=21, base=foreign)
    _assert_fails(run_onebert("push", path, "--task", "refused", url=server.url), 1, "made for other")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://", "ftp://127.0.0.1"])
def test_no_server_at_the_address(url):
    _assert_fails(run_onebert("tasks", "--url", url), 1, "")


def test_key_comes_from_the_environment(tmp_path):
    with Server(tmp_path, api_keys="the-right-key-0123") as server:
        assert json.loads(run_onebert("tasks", "--json", url=server.url, api_key="the-right-key-0123").stdout) == []
        _assert_fails(run_onebert("tasks", url=server.url, api_key="wrong"), 1, "key")
        _assert_fails(run_onebert("tasks", url=server.url), 1, "key")
        _assert_fails(run_onebert("tasks", url=server.url, api_key="schlüssel ☃"), 1, "key")


@pytest.mark.parametrize("command", ["serve", "push", "classify", "tasks", "promote"])
def test_help_explains_every_parameter(command):
    found = typer.main.get_command(build_app()).commands[command]
    assert found.help
    assert [param.name for param in found.params if not param.help] == []


def _assert_fails(done, code, reason):
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
