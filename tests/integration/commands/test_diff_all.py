"""The live versions of all tasks of a server beside their newest versions."""

import json
import re
import shlex
from pathlib import Path

import pytest

import forked
from servers import Task, clean_env, run_onebert

GUIDE = Path(__file__).parents[3] / "docs/guide/apply.md"

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


def told(done):
    assert done.returncode == 0, done.stderr
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


def test_the_command_of_the_guide_prints_what_it_shows(server, fleet, tmp_path):
    folder, _ = fleet
    with server.client() as client:
        for name, tasks in {"tone": (OLD, NEW), "topic": (OLD, NEW), "urgent": (OLD, AGAIN), "spam": (OLD,)}.items():
            for task in tasks:
                client.push(name, task.file)
    (tmp_path / "rows").mkdir()
    for name, rows in {"tone": "worse", "topic": "changed", "urgent": "level"}.items():
        (tmp_path / "rows" / f"{name}.jsonl").write_bytes((folder / f"{rows}.jsonl").read_bytes())
    page = GUIDE.read_text(encoding="utf-8")
    [_, shown] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    [command] = re.findall(r"```sh\n(onebert .*)\n```", page)
    printed = told(forked.run(*shlex.split(command)[1:], env=clean_env(url=server.url), cwd=tmp_path))
    # Tasks of other tests have no rows here.
    lines = [" ".join(line.split()) for line in shown.splitlines() if "──" not in line][:-1]
    assert lines == [" ".join(line.split()) for line in printed.splitlines() if "──" not in line][: len(lines)]
