"""The commands that talk to a server: what they print, what scripts read, and how they fail."""

import json

import pytest

from servers import Task, assert_answers, run_onebert

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


def test_push_for_scripts(onebert, server, file):
    first, second = file(seed=3), file(seed=4)
    because = ("--promote", "--message", "of May")
    pushed = json.loads(onebert("push", first, "--task", "scripted", *because, "--json"))
    assert (pushed["task"], pushed["version"], pushed["created"]) == ("scripted", 1, True)
    assert pushed["promoted"]["what"] == "new → 1"
    assert "of May" in onebert("status", "scripted")
    assert run_onebert("push", second, "--task", "scripted", "--message", "why", url=server.url).returncode == 2
    pushed = json.loads(onebert("push", second, "--task", "scripted", *because, "--json"))
    assert pushed["promoted"] == {
        "task": "scripted", "alias": "live", "from": 1, "to": 2, "what": "1 → 2", "gate": None,
        "measured": {"1": {}, "2": {}}, "changed": [],
    }  # fmt: skip


def test_promote_and_roll_back(onebert, server, file):
    for seed in range(5, 9):
        onebert("push", file(seed=seed), "--task", "moving")
    out = onebert("promote", "moving", 4)
    assert "moving@live: 1 → 4" in out
    assert "onebert promote moving 1" in out
    onebert("promote", "moving", 2)
    # A shadow uses up no version before; a second rollback goes one further back.
    assert "moving@live: shadow 3 began" in onebert("rollout", "moving", "--shadow", 3)
    assert "moving@live: rolled back to 4, shadow 3 ended" in onebert("promote", "moving", "--rollback")
    assert "moving@live: rolled back to 1" in onebert("promote", "moving", "--rollback")
    _assert_fails(run_onebert("promote", "moving", "--rollback", url=server.url), 1, "at no version before 1")
    onebert("promote", "moving", 4)
    onebert("rollout", "moving", "--split", "4=90,3=10")
    # Whoever wants to be rid of a small share is asked whether the large one shall go, too.
    asked = run_onebert("promote", "moving", "--rollback", url=server.url)
    _assert_fails(asked, 1, "moving@live goes from 10 % 3, 90 % 4 back to 1, not to 4 alone; say --yes, or onebert")
    assert "split 10/90 → 4 alone" in onebert("promote", "moving", 4)
    assert "moving@canary: new → 3" in onebert("promote", "moving", 3, "--alias", "canary")
    onebert("promote", "moving", 2, "--alias", "canary")
    moved = json.loads(onebert("promote", "moving", "--rollback", "--alias", "canary", "--wait-all", "--json"))
    assert moved == {
        "task": "moving", "alias": "canary", "from": 2, "to": 3, "what": "rolled back to 3", "gate": None,
        "measured": {"2": {}, "3": {}}, "changed": [],
    }  # fmt: skip
    assert "is at 4 already" in onebert("promote", "moving", 4)
    with server.client() as client:
        assert client.task("moving")["aliases"] == {"canary": 3, "live": 4}
    onebert("rollout", "moving", "--shadow", 3)
    onebert("promote", "moving", 2)
    with server.client() as client:
        # Version 3 was only a shadow, and has an alias no more.
        onebert("delete", "moving@canary")
        client.delete_version("moving", 3)
    assert "moving@live: rolled back to 4\n" in onebert("promote", "moving", "--rollback")
    with server.client() as client:
        client.delete_version("moving", 1)
        assert client.task("moving")["previous"] == {}
    assert "before" not in onebert("status", "moving")
    _assert_fails(run_onebert("promote", "moving", "--rollback", url=server.url), 1, "at no version before 4")


def test_status_lists_and_describes(onebert, task):
    out = onebert("status")
    (row,) = (line.split() for line in out.splitlines() if line.startswith("mood"))
    assert row[:2] == ["mood", "1"]
    assert "bitfit" in onebert("status", "mood")
    listed = {task["name"]: task["live"]["words"] for task in json.loads(onebert("status", "--json"))}
    assert listed["mood"] == "1"
    described = json.loads(onebert("status", "mood", "--json"))
    assert described["versions"][0]["labels"] == 3
    assert [move["what"] for move in described["moves"]] == ["new → 1"]


def test_classify_arguments(onebert, task):
    out = onebert("classify", "mood", *TEXTS)
    for text in TEXTS:
        scores = task.scores(text)
        line = next(line for line in out.splitlines() if text in line)
        assert max(scores, key=scores.get) in line
        assert f"{max(scores.values()):.3f}" in line


def test_a_table_says_what_is_over_thresholds_and_where_the_task_does_not_know(server, onebert):
    """The label stands there also where no score is over a threshold."""
    decision = {"thresholds": {"a": 0.99}, "positives": ["a"], "abstain": {"below": 0.9}}
    made = Task(labels=["a", "b"], seed=3, format=2, decision=decision)
    with server.client() as client:
        client.push("unsure", made.file)
    scores = made.scores("my order is late")
    best = max(scores, key=scores.get)
    assert scores[best] < 0.9, "a test of nothing else"
    head, row = onebert("classify", "unsure", "my order is late").splitlines()
    assert head.split() == ["text", "label", "score", "labels", "abstained"]
    assert row.split() == [*"my order is late".split(), best, f"{scores[best]:.3f}", "none", "yes"]
    low = min(scores.values()) - 0.01
    row = onebert("classify", "unsure", "my order is late", "--threshold", f"{low:.3f}").splitlines()[1]
    ranked = sorted(scores, key=scores.get, reverse=True)
    assert row.split()[-3:] == [f"{ranked[0]},", ranked[1], "yes"]


def test_classify_asks_for_what_a_request_may_ask(server, onebert, task):
    logits = dict(zip(task.manifest["labels"], task.logits(TEXTS[0]), strict=True))
    given = json.loads(onebert("classify", "mood", TEXTS[0], "--json", "--activation", "none"))
    assert given["scores"] == pytest.approx(logits, abs=1e-4)
    long = "order " * 100
    done = run_onebert("classify", "mood", long, "--window", "16,4,mean", url=server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == ["text", "label", "score", "windows"]
    # 100 pieces in windows of 14 beside the special tokens, each 10 further.
    assert done.stdout.split()[-1] == "10"
    done = run_onebert("classify", "mood", long, url=server.url)
    assert done.returncode == 0
    assert (
        done.stderr == "note: of 1 text over the task's longest input the end was not read; --window reads all of it\n"
    )
    for option, value, message in (
        ("--window", "16;4", "--window 16;4: write 256, or 256,64, or 256,64,max"),
        ("--window", "16,12", "overlap is at most half of tokens"),
        ("--window", "16,4,union", "has no reduction union"),
        ("--window", "4096", "takes 48 tokens, and a window of it no more"),
        ("--activation", "relu", "relu"),
        ("--threshold", "nan", "a number is not finite"),
    ):
        done = run_onebert("classify", "mood", "x", option, value, url=server.url)
        assert done.returncode in (1, 2), option
        assert message in " ".join(done.stderr.replace("│", "").split())
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_one_head_and_the_width_of_the_terminal(server, task, width):
    text = "a very long text, " * 20
    stdin = f"{text}\n" * 70 + "x" * 65537
    done = run_onebert("classify", "mood", stdin=stdin, url=server.url, env={"COLUMNS": str(width)})
    _assert_fails(done, 1, "error: line 71: must have at most 65536 characters")
    head, *rows = [line for line in done.stdout.splitlines() if line.strip()]
    assert head.split() == ["text", "label", "score"]
    assert len(rows) == 70
    for row in rows:
        # The text fills what label and score leave.
        assert row.startswith(text[: width - 30])
        assert len(row.rstrip()) <= width


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ("x" * 65537 + "\nnot reached\n", "error: line 401: must have at most 65536 characters"),
        # Larger than a request may be: the server refuses it without saying which input it is.
        ("x" * 2_000_000, "error: line 401: "),
        ("no pair\n", "error: line 401 does not hold two texts"),
    ],
    ids=["one input", "a whole request", "while reading"],
)
def test_classify_gives_every_result_before_the_line_with_an_error(server, task, after, reason):
    between, options = ("\t", ["--pair"]) if after == "no pair\n" else (" ", [])
    stdin = "".join(f"order {i}{between}is late\n \n" for i in range(200)) + after
    done = run_onebert("classify", "mood@1", "--json", *options, stdin=stdin, url=server.url)
    _assert_fails(done, 1, "")
    assert done.stderr.startswith(reason)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["line"] for result in results] == list(range(1, 401, 2))
    assert {(result["task"], result["version"]) for result in results} == {("mood", 1)}


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
        (["classify", "moood", "x"], "", 1, "there is no task moood; is mood meant?"),
        (["classify", "mood@9", "x"], "", 1, "mood has no version 9"),
        (["classify", "Bad Name", "x"], "", 1, "is not a name"),
        *(
            (["status", "--url", url], "", 1, "")
            for url in ("http://127.0.0.1:1", "nonsense", "http://", "ftp://127.0.0.1")
        ),
        (["classify", "mood", "--pair"], "a\tb\n\na\t \n", 1, "line 3 does not hold two texts"),
        (["classify", "mood", "--pair", "one"], "", 2, "even number"),
        (["delete", "mood"], "", 2, "to delete all of mood: onebert delete mood --all"),
        (["delete", "mood@1", "--all"], "", 2, "mood@1 is deleted without --all"),
        (["delete", "mood", "--all"], "y\n", 1, "mood goes for good, with 1 version; say --yes"),
        (["delete", "mood@1"], "", 1, "has the alias live"),
        (["delete", "mood@none"], "", 1, "no alias none"),
        (["classify", "mood", "fine", " "], "", 1, "error: input 2: "),
        (["status", "nobody"], "", 1, "there is no task nobody"),
        (["promote", "mood"], "", 2, "give a VERSION, or --rollback"),
        (["promote", "mood", "1", "--rollback"], "", 2, "give a VERSION, or --rollback"),
        (["promote", "mood", "--rollback"], "", 1, "at no version before 1"),
        (["promote", "mood", "live"], "", 2, "'live' is not a version number"),
        (["promote", "mood", "9" * 5000], "", 2, "is not a version number"),
        (["promote", "mood@2"], "", 2, "write `onebert promote mood 2`"),
        (["push", "nowhere.safetensors"], "", 1, "read"),
        (["push", __file__], "", 1, "error: test_server_cli.py: this is no delta file, or it was cut short\n"),
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


def test_push_says_what_is_live(onebert, server, file):
    """Also after a task was deleted, where the next version is live although it is not the first."""
    first, second = file(seed=22), file(seed=23)
    assert 'it is live: `onebert classify again "a text"` asks it' in onebert("push", first, "--task", "again")
    assert "live is 1\nnext: onebert rollout again --shadow 2\n" in onebert("push", second, "--task", "again")
    assert "deleted with 2 versions" in onebert("delete", "again", "--all", "--yes")
    out = onebert("push", first, "--task", "again")
    assert "is version 3" in out
    assert "it is live" in out
    assert "promote" not in out
    assert onebert("delete", "again", "--all", "--yes").endswith("deleted with 1 version\n")
    pairs = file(seed=47, training={"data": {"name": "questions", "pairs": True}})
    assert 'it is live: `onebert classify same --pair "a text" "another"` asks it' in onebert(
        "push", pairs, "--task", "same"
    )
    # Where the command would ask another server, what it says to type next names this one.
    other = run_onebert("push", first, "--task", "elsewhere", "--url", server.url, url="http://127.0.0.1:1")
    assert f'`onebert classify elsewhere "a text" --url {server.url}` asks it' in other.stdout


def measured(split="test", score=0.9, digest="a"):
    return {"metric": "accuracy", split: {"accuracy": score}, "data": {"name": "reviews", "digest": digest}}


def test_what_the_trainer_measured_is_shown_and_what_two_scores_do_not_share(onebert, file):
    for seed, score in ((26, 0.8816), (27, 0.7895)):
        training = {"validation": {"accuracy": 0.5}} | measured(score=score)
        onebert("push", file(seed=seed, training=training), "--task", "measured")
    out = onebert("status", "measured")
    assert "test accuracy" in out
    for score in ("0.8816", "0.7895"):
        assert score in next(line for line in out.splitlines() if score in line and "reviews" in line)
    out = onebert("promote", "measured", 2)
    assert "version 1: test accuracy 0.8816 on reviews" in out
    assert "version 2: test accuracy 0.7895 on reviews" in out
    assert "comparable" not in out
    described = json.loads(onebert("status", "measured", "--json"))
    assert described["versions"][0]["training"]["score"] == 0.8816
    for version, training, differs in (
        (3, measured(digest="b"), ""),
        (4, measured("validation"), "split"),
    ):
        onebert("push", file(seed=37 + version, training=training), "--task", "measured")
        out = onebert("promote", "measured", version)
        assert ("comparable" in out, f"not of the same {differs}\n" in out) == (bool(differs), bool(differs))
    onebert("push", file(seed=46, training=measured("validation", 0.8125) | {"folds": 5}), "--task", "folded")
    out = onebert("status", "folded")
    assert "5 folds accuracy" in out
    assert "validation" not in out


def test_promote_says_what_clients_of_the_version_before_do_not_find_again(onebert, file):
    flags = {"format": 2, "decision": {"positives": ["bad"]}}
    versions = [
        {"labels": ["good", "bad"], **flags},
        {"labels": ["bad", "good"], **flags},
        {"labels": ["fine", "urgent"]},
        {"labels": ["fine", "urgent", "bad"], **flags},
        {"labels": ["fine", "bad"], "format": 2, "decision": {"positives": ["fine"]}},
        {"labels": [f"queue {i}" for i in range(20)]},
    ]
    for seed, manifest in enumerate(versions, 60):
        onebert("push", file(seed=seed, **manifest), "--task", "relabeled")
    for version, lines in {
        2: [],
        3: ["its labels differ: fine, urgent instead of bad, good", "it names no positive label; version 2 flags bad"],
        4: ["its labels differ: also bad"],
        5: ["its labels differ: no longer urgent", "its positive labels are fine; version 4 flags bad"],
        6: [
            f"its labels differ: {', '.join(f'queue {i}' for i in range(8))} and 12 more instead of fine, bad",
            "it names no positive label; version 5 flags fine",
        ],
    }.items():
        printed = [line.strip() for line in onebert("promote", "relabeled", version).splitlines()]
        assert printed[1:-1] == lines
    path = file(seed=67, labels=["a", "b"])
    assert "its labels differ: a, b instead of " in onebert("push", path, "--task", "relabeled", "--promote")


def test_what_a_file_claims_of_its_training_is_not_believed(onebert, file):
    for seed, training in enumerate(
        [{"metric": 1, "test": []}, {"metric": "f1", "test": {"f1": "best"}}, {"data": "x"}, {"data": {"name": {}}}], 28
    ):
        onebert("push", file(seed=seed, training=training), "--task", "claims")
    assert len(onebert("status", "claims").splitlines()) >= 4
    onebert("promote", "claims", 4)


def _assert_fails(done, code, reason):
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
