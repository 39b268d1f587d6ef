"""All tasks of a server beside their newest versions, against their own earlier answers, and one text over versions."""

import json
import random
import re
import shlex
from pathlib import Path

import pytest

import forked
from onebert_server.client import Client
from servers import Server, Task, clean_env, run_onebert, store

GUIDE = Path(__file__).parents[3] / "docs/guide/fleet.md"

WORDS = "late broken lovely bad good great parcel invoice screen refund help password".split()
TEXTS = [f"{one} {other}" for one in WORDS[:6] for other in WORDS[6:]]
LABELS = ["good", "bad"]
# Two versions whose answers differ for many of the texts, and one that answers as the first.
OLD, NEW = Task(seed=16, labels=LABELS), Task(seed=21, labels=LABELS)
AGAIN = Task(seed=16, labels=LABELS, training={"task": "again"})


def answers(task, texts=TEXTS):
    return [max(scores, key=scores.get) for text in texts if (scores := task.scores(text))]


def write(folder, name, labels, **more):
    columns = {"text": TEXTS, "label": labels, **more}
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def told(done, status=0):
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def fleet(server, tmp_path_factory):
    """Rows of a task that is worse, one better, one that flips for no better or worse, one level; and others."""
    versions = {
        "worse": (OLD, NEW),
        "better": (OLD, NEW),
        "changed": (OLD, NEW),
        "unlabeled": (OLD, NEW),
        "level": (OLD, AGAIN),
        "same": (OLD,),
        "bare": (OLD, NEW),
        "ugly": (OLD, NEW),
        "long": (OLD, NEW),
    }
    with server.client() as client:
        for name, tasks in versions.items():
            for task in tasks:
                client.push(name, task.file)
    folder = tmp_path_factory.mktemp("fleet")
    old, new = answers(OLD), answers(NEW)
    flipped = [place for place, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    assert len(flipped) > 11, "a test of nothing else"
    odd = set(flipped[: len(flipped) // 2])
    # Half of the flips are to the better.
    mixed = [new[place] if place in odd else old[place] for place in range(len(TEXTS))]
    write(folder, "worse", old, lang=["de" if place in flipped else "en" for place in range(len(TEXTS))])
    write(folder, "better", new, lang=["en"] * len(TEXTS))
    write(folder, "changed", mixed, lang=["en"] * len(TEXTS))
    write(folder, "unlabeled", [None] * len(TEXTS), lang=["en"] * len(TEXTS))
    write(folder, "level", old, lang=["en"] * len(TEXTS))
    write(folder, "same", old, lang=["en"] * len(TEXTS))
    write(folder, "ugly", ["ugly"] * len(TEXTS), lang=["en"] * len(TEXTS))
    write(folder, "nobody", old)
    # The server refuses the whole request that has this text, also for the rows of other tasks.
    (folder / "long.csv").write_text(f"text,label,lang\nlate parcel,good,en\n{'late ' * 20_000},bad,en\n")
    (folder / "readme.txt").write_text("no rows")
    return folder, len(flipped)


def test_each_task_is_told_apart_from_its_newest_version(server, fleet):
    folder, flips = fleet
    asked = ("diff", "--all", "--data", folder, "--slice", "lang")
    found = json.loads(told(run_onebert(*asked, "--json", url=server.url)))
    tasks = {one["task"]: one for one in found["tasks"]}
    verdicts = {name: one["verdict"] for name, one in tasks.items()}
    assert [*verdicts.items()] == [
        ("worse", "worse"),
        ("changed", "changed"),
        ("unlabeled", "changed"),
        ("level", "level"),
        ("better", "better"),
    ]
    assert (tasks["worse"]["live"], tasks["worse"]["newest"]) == (1, 2)
    assert tasks["worse"]["only_a"] == tasks["better"]["only_b"] == tasks["unlabeled"]["flips"] == flips
    assert tasks["level"]["flips"] == 0
    assert "p" not in tasks["unlabeled"]
    # By Benjamini and Hochberg: of four tests, sorted, each p times 4 / rank, and no more than the next.
    own = sorted((one["p"], one["corrected_p"]) for one in found["tasks"] if "p" in one)
    assert len(own) == 4
    expected = [min(p * 4 / (rank + 1) for rank, (p, _) in enumerate(own) if rank >= at) for at in range(4)]
    assert [corrected for _, corrected in own] == pytest.approx(expected)
    assert tasks["worse"]["slices"]["lang"] == {
        "en": {"rows": 36 - flips, "flips": 0, "right_a": 36 - flips, "right_b": 36 - flips},
        "de": {"rows": flips, "flips": flips, "right_a": flips, "right_b": 0},
    }
    left_out = found["left_out"]
    assert left_out.keys() == {"bare", "ugly", "long", "nobody"}
    assert (left_out["bare"], left_out["nobody"]) == ("it has no rows", "there is no such task")
    assert left_out["long"].startswith("line 3: ")
    assert "the label 'ugly' is not one of the 2 known" in left_out["ugly"]


def test_the_worst_task_stands_first_and_alone_where_it_is_asked_for(server, fleet):
    folder, flips = fleet
    printed = told(run_onebert("diff", "--all", "--data", folder, "--slice", "lang", url=server.url)).splitlines()
    worst = " ".join(printed[2].split())
    assert worst.startswith(f"worse 1 2 36 {flips} 36 → {36 - flips} ")
    assert worst.endswith(f"worse lang=de: {flips} → 0 of {flips}")
    assert "without rows: bare" in printed
    only = json.loads(told(run_onebert("diff", "--all", "--data", folder, "--only-worse", "--json", url=server.url)))
    assert [one["task"] for one in only["tasks"]] == ["worse"]
    for wrong in (("--all",), ("worse@1", "--all", "--data", folder), ("worse@1", "worse@2", "--only-worse"), ()):
        done = run_onebert("diff", *wrong, url=server.url)
        assert (done.returncode, done.stdout) == (2, ""), wrong
    done = run_onebert("diff", "--all", "--data", folder / "none", url=server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: there is no folder {folder / 'none'}")


def test_two_versions_are_counted_by_slices_too(server, fleet):
    folder, flips = fleet
    rows = folder / "worse.jsonl"
    printed = told(run_onebert("diff", "worse@1", "worse@2", "--data", rows, "--slice", "lang", url=server.url))
    assert ["de", str(flips), str(flips), str(flips), "0"] in [line.split() for line in printed.splitlines()]


def sentences(count):
    draw = random.Random(3)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(count)]


def test_a_change_of_the_server_is_red_where_answers_change(tmp_path):
    """Here it computes in another dtype, in which near ties flip; a task is deleted, and another one is promoted."""
    data, kept, again = tmp_path / "rows", tmp_path / "answers.json", tmp_path / "again.json"
    data.mkdir()
    texts = sentences(600)
    for name, own in (("tone", texts), ("moved", TEXTS), ("gone", TEXTS)):
        (data / f"{name}.csv").write_text("text\n" + "".join(f"{text}\n" for text in own))
    store(tmp_path / "data", tone=OLD, moved=[OLD, NEW], gone=NEW, bare=OLD)
    asked = ("check-fleet", "--data", data, "--answers", kept)
    with Server(tmp_path) as server:
        assert "3 tasks: the answers to 672 rows are kept" in told(run_onebert(*asked, url=server.url))
        told(run_onebert("check-fleet", "--data", data, "--answers", again, url=server.url))
        assert again.read_bytes() == kept.read_bytes()
        assert not any(text in kept.read_text() for text in texts)
        assert json.loads(told(run_onebert(*asked, "--json", url=server.url))) == {
            "red": [],
            "changed": {},
            "new": [],
            "dtypes": [["float32"], ["float32"]],
            "tasks": 3,
            "left_out": {"bare": "it has no rows"},
        }
        assert "0 red; 3 of 3 tasks answer as before" in told(run_onebert(*asked, url=server.url))
    with Server(tmp_path, dtype="int8") as server:
        with Client(server.url) as client:
            said = [one.label for one in client.classify("tone", texts)]
        told(run_onebert("promote", "moved", 2, url=server.url))
        told(run_onebert("delete", "gone", "--all", url=server.url))
        found = json.loads(told(run_onebert(*asked, "--json", url=server.url), 1))
        printed = told(run_onebert(*asked, url=server.url), 1).splitlines()
    flips = [place for place, (a, b) in enumerate(zip(answers(OLD, texts), said, strict=True)) if a != b]
    assert flips, "a test of nothing else"
    gone, tone = found["red"]
    assert gone == {"task": "gone", "version": 1, "rows": 36, "why": "there is no such task"}
    assert (tone["task"], tone["differ"], 0 < tone["largest"] < 0.21) == ("tone", len(flips), True)
    # The first line of the file names the columns.
    assert tone["first"].startswith(f"line {flips[0] + 2}: ")
    assert found["changed"] == {"moved": "version 1 was live, now it is version 2"}
    assert printed[0] == "the answers were computed in float32, now in int8"
    assert printed[-3:] == [
        "2 red; 0 of 1 tasks answer as before",
        "not compared: moved: version 1 was live, now it is version 2",
        "without rows: bare",
    ]
    kept.write_text("{}")
    done = run_onebert(*asked, url=server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "answers.json is no file of answers" in done.stderr


def test_the_version_that_changed_an_answer_is_found(tmp_path):
    """Five versions flip once for good, and once between; the file of another one is damaged."""
    text = next(text for text, a, b in zip(TEXTS, answers(OLD), answers(NEW), strict=True) if a != b)
    data = {"name": "new.csv", "digest": "sha256:" + "7" * 64}
    made = [
        OLD,
        NEW,
        *(Task(seed=16, labels=LABELS, training={"note": note}) for note in ("second", "damaged")),
        Task(seed=21, labels=LABELS, training={"data": data}),
        Task(seed=21, labels=LABELS, training={"note": "the same"}),
    ]
    root = "the-right-key-0123"
    damaged = store(tmp_path / "data", tone=made)[3]
    (tmp_path / "data" / "blobs" / damaged.digest.removeprefix("sha256:")).write_bytes(b"damaged")
    with Server(tmp_path, api_keys=root) as server:
        with Client(server.url, root) as client:
            own = client.create_key("ann", ["classify"], ["t*"]).key
            client.move_alias("tone", "live", 6, expected=1)
        asked = ("bisect", "tone", text)
        found = json.loads(told(run_onebert(*asked, "--json", url=server.url, api_key=root)))
        printed = told(run_onebert(*asked, url=server.url, api_key=root))
        less = told(run_onebert(*asked, url=server.url, api_key=own))
        first = told(run_onebert("bisect", "tone@1", text, url=server.url, api_key=own))
        done = run_onebert("bisect", "tone@4", text, url=server.url, api_key=root)
    before, after = (answers(one, [text])[0] for one in (OLD, NEW))
    given = {one["version"]: one["answer"] for one in found["versions"]}
    assert given == {1: before, 2: after, 3: before, 5: after, 6: after}
    assert (found["before"]["version"], found["since"]["version"]) == (3, 5)
    assert found["since"]["score"] == pytest.approx(NEW.scores(text)[after], abs=1e-4)
    assert [*found["skipped"]] == ["4"]
    assert (found["since"]["data"], found["since"]["data_digest"]) == (data["name"], data["digest"])
    norm = next(one for one in found["norms"] if (one["layer"], one["symbol"]) == (1, "b_m3"))
    [name] = [one for one in OLD.tensors if one.startswith("delta.") and "layer.1.output.dense.bias" in one]
    apart = OLD.tensors[name].astype("f8") - NEW.tensors[name].astype("f8")
    assert norm["apart"] == pytest.approx(float((apart**2).mean()) ** 0.5, rel=1e-3)
    for words in (f"version 5 is the first that answers {after} (0.", "sha256:777", "skipped: version 4: ", "b_m3"):
        assert words in printed
    assert "somebody: this key may not read the audit trail" in less
    assert "the two files are not compared: this takes a key with the scope" in less
    assert first.splitlines()[0].startswith(f"no change: versions 1 to 1 all answer {before} (0.")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: tone@4: ")


def test_the_commands_of_the_guide_print_what_it_shows(server, fleet, tmp_path):
    folder, _ = fleet
    with server.client() as client:
        for name, tasks in {"tone": (OLD, NEW), "topic": (OLD, NEW), "urgent": (OLD, AGAIN), "spam": (OLD,)}.items():
            for task in tasks:
                client.push(name, task.file)
    (tmp_path / "rows").mkdir()
    for name, rows in {"tone": "worse", "topic": "changed", "urgent": "level"}.items():
        (tmp_path / "rows" / f"{name}.jsonl").write_bytes((folder / f"{rows}.jsonl").read_bytes())
    page = GUIDE.read_text(encoding="utf-8")
    [shown] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"```sh\n(onebert .*)\n```", page)
    assert [shlex.split(one)[1] for one in commands] == ["diff", "check-fleet", "bisect"]
    env = clean_env(url=server.url)
    done = [forked.run(*shlex.split(one)[1:], env=env, cwd=tmp_path) for one in [*commands, commands[1]]]
    printed, kept, found, green = map(told, done)
    # Tasks of other tests have no rows here.
    same = [" ".join(line.split()) for line in shown.splitlines() if "──" not in line][:-1]
    assert same == [" ".join(line.split()) for line in printed.splitlines() if "──" not in line][: len(same)]
    assert "3 tasks: the answers to 108 rows are kept" in kept
    assert "0 red; 3 of 3 tasks answer as before" in green
    assert found.startswith("no change: versions 1 to 1 all answer ")
