"""`onebert apply`: a server made equal to a file, step by step, and the file that a server writes of itself."""

import re

import httpx
import pytest
from cryptography.fernet import Fernet
from prometheus_client.parser import text_string_to_metric_families

from onebert_server.cli.apply.plan import make_plan, walk
from onebert_server.client import Client, ShadowShare, TargetFacts
from onebert_store.file.format import dumps
from pages import blocks
from servers import Server, Task, run_onebert
from tiny_delta import make_delta

LABELS = ["complaint", "question", "praise"]
TEXTS = ["late broken parcel", "good day", "help password", "lovely screen refund", "bad invoice"]
DIFFERENT = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), samples_key=Fernet.generate_key().decode()) as running:
        yield running


@pytest.fixture(scope="module")
def files():
    """Delta files of four versions, which answer differently."""
    return [Task(seed=seed, labels=LABELS).file for seed in range(1, 5)]


@pytest.fixture
def place(tmp_path, files):
    """A folder with the delta files `1.safetensors` to `4.safetensors`."""
    for number, content in enumerate(files, 1):
        (tmp_path / f"{number}.safetensors").write_bytes(content)
    return tmp_path


@pytest.fixture
def name(request):
    """A name for a task that no other test has."""
    return re.sub("[^a-z]+", "-", request.node.name)[:60].strip("-")


def apply(server, file, *options):
    return run_onebert("apply", "-f", file, *options, url=server.url)


def write(folder, text):
    file = folder / "tasks.toml"
    file.write_text(text)
    return file


def write_each(folder, *tasks):
    """A file in which each task has one version: of the first file, the second, and so on."""
    return write(
        folder,
        "".join(f'[tasks.{task}]\nversions.1 = "{number}.safetensors"\n' for number, task in enumerate(tasks, 1)),
    )


def as_toml(server, *task):
    done = run_onebert("status", *task, "--as-toml", url=server.url)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def requests(server):
    """The requests that a server has answered, but for this one."""
    families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text)
    [samples] = [family.samples for family in families if family.name == "onebert_http_requests"]
    return sum(
        sample.value for sample in samples if sample.name.endswith("_total") and sample.labels["route"] != "/metrics"
    )


def applied(server, file):
    """The printed difference of an application that goes through, after which there is none."""
    dry = apply(server, file, "--dry-run")
    assert (dry.returncode, dry.stderr) == (DIFFERENT, "")
    done = apply(server, file, "--message", "of the week")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    assert done.stdout.startswith(dry.stdout)
    again = apply(server, file, "--dry-run")
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "no difference")
    return dry.stdout


def test_a_task_from_nothing_then_a_split_then_alone_again(server, place, name):
    file = write(place, f'[tasks.{name}]\nversions = {{ 1 = "1.safetensors" }}\naliases = {{ live = 1 }}\n')
    out = applied(server, file)
    assert "  + version 1  1.safetensors (" in out
    assert "2 to add, 0 to change, 0 to remove" in out
    file = write(
        place,
        f"[tasks.{name}]\n"
        'versions = { 1 = "1.safetensors", 2 = "2.safetensors", 3 = "3.safetensors" }\n'
        'aliases.live = { split = { 1 = 90, 2 = 10 }, sticky = "header:X-User", shadow = { 3 = 50 } }\n'
        "aliases.canary = 2\n",
    )
    out = applied(server, file)
    assert "3 to add, 1 to change, 0 to remove" in out
    with Client(server.url) as client:
        facts = client.task(name)
        assert facts.aliases == {"live": 1, "canary": 2}
        assert facts.targets["live"].split == {"1": 90, "2": 10}
        assert {move.reason for move in client.status(name).moves} == {"of the week"}
        assert facts.targets["live"].sticky == "header:X-User"
        assert facts.targets["live"].shadow == [ShadowShare(3, 50)]
    file = write(
        place,
        f'[tasks.{name}]\nversions = {{ 2 = "2.safetensors" }}\naliases = {{ live = 2, canary = false }}\n',
    )
    assert "0 to add, 1 to change, 1 to remove" in applied(server, file)
    with Client(server.url) as client:
        facts, moves = client.task(name), client.status(name).moves
    assert (facts.aliases, facts.targets, len(facts.versions)) == ({"live": 2}, {}, 3)
    assert {move.reason for move in moves} == {"of the week"}


def test_the_example_of_the_page_is_applied(server, files, tmp_path):
    [page] = [block.code for block in blocks("docs/guide/release.md", "toml") if "versions" in block.code]
    for path, content in zip(("tone-1", "tone-2", "topic"), files, strict=False):
        (tmp_path / f"{path}.safetensors").write_bytes(content)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/tone.csv").write_text("text,label\ngood day,praise\n")
    out = applied(server, write(tmp_path, page.replace("0.85", "0.0")))
    assert "7 to add, 0 to change, 0 to remove" in out


def test_the_first_version_of_a_new_task_is_live_unless_the_file_says_otherwise(server, place, name):
    file = write(place, f'[tasks.{name}]\nversions.a = "1.safetensors"\naliases.next = "a"\n')
    assert "  + live       new a\n  + next       new a\n" in applied(server, file)
    begun = f"{name[:50]}-begun"
    with Client(server.url) as client:
        assert client.task(name).aliases == {"live": 1, "next": 1}
        client.push(begun, place / "1.safetensors", live=False)
        file.write_text(file.read_text().replace(name, begun))
        applied(server, file)
        assert client.task(begun).aliases == {"live": 1, "next": 1}
        client.delete_alias(begun, "live", 1)
    assert apply(server, file).stdout.startswith("no difference\n")


def test_a_file_that_changes_after_the_difference_was_printed_is_not_pushed(server, place, name, capsys):
    gone, still, changed = (f"{name[:50]}-{letter}" for letter in "abc")
    with Client(server.url) as client:
        plan = make_plan(client, write_each(place, gone, still, changed))
        (place / "1.safetensors").unlink()
        (place / "4.safetensors").replace(place / "3.safetensors")
        assert not walk(client, plan)
        assert [task.name for task in client.tasks() if task.name in (gone, still, changed)] == [still]
    assert capsys.readouterr().err.splitlines() == [
        f"error: {gone}, version 1: 1.safetensors cannot be read: No such file or directory",
        f"error: {changed}, version 1: 3.safetensors has changed since the difference was printed",
    ]


def test_what_the_file_does_not_name_is_left_alone_and_said(server, place, files, name):
    other = f"{name[:50]}-other"
    with Client(server.url) as client:
        client.push(other, files[0])
        client.push(name, files[0])
        client.move_alias(name, "canary", 1, None)
        client.set_samples(name, 0.5)
    file = write(place, f'[tasks.{name}]\nversions.1 = "1.safetensors"\naliases.live = 1\n')
    done = apply(server, file)
    assert done.returncode == 0
    [left] = [line for line in done.stdout.splitlines() if line.startswith("not in the file")]
    assert f"{name}@canary" in left
    with Client(server.url) as client:
        assert client.samples(name).share == 0.5
        assert client.task(other).aliases == {"live": 1}


def test_all_mistakes_are_said_at_once_and_a_file_for_another_task_is_noted(server, place, name):
    (place / "foreign.safetensors").write_bytes(dumps(make_delta()))
    (place / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:7\nsize 4832\n")
    (place / "trained.safetensors").write_bytes(Task(seed=7, labels=LABELS, training={"task": "other"}).file)
    wrong = (
        '[tasks.{0}a]\nversions.1 = "foreign.safetensors"\n[tasks.{0}b]\nversions.1 = "pointer.safetensors"\n'
        '[tasks.{0}c]\nversions.1 = "1.safetensors"\naliases.live = 7\n'
        '[tasks.{0}d]\nversions = {{ 1 = "sha256:{1}", 2 = "foreign.safetensors" }}\n'
    )
    right = f'[tasks.{name[:40]}e]\nversions.1 = "trained.safetensors"\n'
    done = apply(server, write(place, wrong.format(name[:40], "7" * 64) + right))
    assert (done.returncode, done.stdout) == (1, "")
    lines = [line.removeprefix(f"error: tasks.toml: tasks.{name[:40]}") for line in done.stderr.splitlines()]
    assert [line.partition(":")[0] for line in lines] == [
        *("b.versions.1", "c.aliases.live", "a.versions.1", "d.versions.1", "d.versions.2"),
    ]
    assert "is a pointer of Git LFS" in lines[0]
    assert "foreign.safetensors was trained on tiny, which this server does not have" in lines[2]
    done = apply(server, write(place, right))
    assert done.returncode == 0
    assert done.stderr == f"note: tasks.{name[:40]}e.versions.1: trained.safetensors was trained for other\n"
    assert apply(server, place / "tasks.toml").stderr == ""


def test_kept_answers_begin_change_and_end(server, place, name):
    task = f'[tasks.{name}]\nversions.1 = "1.safetensors"\naliases.live = 1\n'
    applied(server, write(place, task + "kept = { share = 0.5 }\n"))
    out = applied(server, write(place, task + "kept = { share = 0.1, days = 7, most = 100 }\n"))
    assert "~ kept answers  0.5 of the answers for 30 days, at most 10,000 → 0.1 of the answers for 7 days" in out
    with Client(server.url) as client:
        facts = client.samples(name)
    assert (facts.share, facts.days, facts.most) == (0.1, 7, 100)
    assert "0 kept answers are deleted" in applied(server, write(place, task + "kept = false\n"))


def test_a_move_in_between_fails_its_task_alone(server, place, files, name, capsys):
    """Somebody moves an alias after the difference was read: the walk names the tag that it has read."""
    moved, still = f"{name[:50]}-a", f"{name[:50]}-b"
    with Client(server.url) as client:
        for task in (moved, still):
            for content in files[:3]:
                client.push(task, content)
        tasks = "".join(
            f'[tasks.{task}]\nversions = {{ 2 = "2.safetensors" }}\naliases.live = 2\nkept = {{ share = 0.5 }}\n'
            for task in (moved, still)
        )
        plan = make_plan(client, write(place, tasks))
        client.move_alias(moved, "live", 3, 1)
        assert not walk(client, plan)
        assert f"{moved}@live is `3` now, was `1`: run it again" in capsys.readouterr().err
        assert client.task(moved).aliases == {"live": 3}
        assert client.samples(moved).share is None
        assert client.task(still).aliases == {"live": 2}
        assert client.samples(still).share == 0.5


def answers(client, task, digests):
    """The scores of a task by texts and users, with the digest of the version that gave them."""
    seen = []
    for user in range(12):
        client._http.headers["X-User"] = f"user-{user}"
        for result in client.classify(task, TEXTS):
            seen.append((digests[result.version], result.label, round(result.score, 4)))
    return seen


@pytest.mark.slow
def test_the_file_of_a_server_changes_nothing_there_and_makes_another_server_equal(place, files, tmp_path):
    key = Fernet.generate_key().decode()
    rows = place / "rows.csv"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Server(tmp_path / "one", samples_key=key) as first:
        with Client(first.url) as client:
            for content in files:
                client.push("tone", content)
            client.push("plain.task", files[1])
            meaning = TargetFacts({"2": 60, "3": 40}, "header:X-User", [ShadowShare(4, 50)])
            client.move_alias("tone", "live", meaning, 1)
            client.move_alias("tone", "canary", 3, None)
            client.set_samples("tone", 0.25, 14, 500)
            digests = {version.version: version.digest for version in client.task("tone").versions}
            given = [{"text": text, "label": client.classify("tone@3", text).label} for text in TEXTS]
            rows.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in given))
            # The gate judges both versions of the split when the other server makes them live.
            must = [row for row in given if client.classify("tone@2", row["text"]).label == row["label"]]
            client.set_gate("tone", {"min": {"accuracy": 0.1}, "must": must[:1]}, given)
            asked = requests(first)
            file = write(place, as_toml(first))
            # The lists of tasks and of their status; then the one gate, and the one rule of kept answers.
            assert requests(first) - asked == 4
            same = apply(first, file, "--dry-run")
            # The same lists and parts, and the bases.
            assert requests(first) - asked == 9
            assert (same.returncode, same.stdout, same.stderr) == (0, "no difference\n", "")
            audited = len(client.audit())
            assert apply(first, file).returncode == 0
            assert len(client.audit()) == audited
            before = answers(client, "tone", digests), client.classify("plain.task", TEXTS)
        downloaded = run_onebert("download", "--all", "--out", place, url=first.url)
        assert downloaded.returncode == 0, downloaded.stderr
    with Server(tmp_path / "two", samples_key=key) as second, Client(second.url) as client:
        refused = apply(second, file)
        assert refused.returncode == 1
        assert "tasks.tone.gate: this server does not have its rows (sha256:" in refused.stderr
        assert client.tasks() == []
        text = file.read_text()
        file.write_text(text.replace("[tasks.tone.gate]\n", '[tasks.tone.gate]\ndata = "rows.csv"\n'))
        done = apply(second, file)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        digests = {version.version: version.digest for version in client.task("tone").versions}
        assert (answers(client, "tone", digests), client.classify("plain.task", TEXTS)) == before
        assert (client.samples("tone").share, client.samples("tone").days) == (0.25, 14)
        assert client.gate("tone").rows == len(TEXTS)
        assert apply(second, file, "--dry-run").returncode == 0
        assert as_toml(second).count("aliases.") == text.count("aliases.")
