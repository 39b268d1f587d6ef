"""`onebert store`: what it says of a store, what it removes, what it brings back."""

import errno
import hashlib
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from onebert_store.errors import StoreCorrupt
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from onebert_store.samples.records import Feedback, Kind
from onebert_store.samples.store import open_samples
from stores import name_of
from tiny_delta import make_delta

on_sqlite = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


@pytest.fixture
def onebert(onebert, monkeypatch, place):
    monkeypatch.setenv("ONEBERT_REGISTRY", place.registry)
    return onebert


@pytest.fixture
def store(place):
    """Three versions of two tasks, and a deleted one."""
    with Registry.open(place) as registry:
        for seed in (1, 2, 3):
            registry.add("spam", make_delta(seed))
        registry.add("tone", make_delta(4, labels=["calm", "angry"]))
        registry.delete_version("spam", 2)
    return place


def blob(place, delta):
    return place.folder / "blobs" / name_of(delta)


def short(delta):
    return name_of(delta)[:12]


def change(place, *statements):
    with join_store(place) as store, store.database.writing() as connection:
        for statement in statements:
            connection.execute(text(statement))


def versions(place):
    with Registry.open(place) as registry:
        return {(entry.task, entry.version): entry.digest for entry in registry.entries()}


def test_a_check_may_run_beside_the_owner(onebert, store):
    with Registry.open(store) as registry:
        registry.add("new", make_delta(9))
        assert onebert("check")[1].startswith("4 versions, 4 of them whole")
        assert onebert("gc")[0] == 0
        registry.add("new", make_delta(10))


@on_sqlite
def test_what_is_missing_or_damaged_is_named_and_the_rest_is_whole(onebert, store):
    blob(store, make_delta(1)).unlink()
    other = blob(store, make_delta(4, labels=["calm", "angry"]))
    other.write_bytes(b"x")
    code, out, err = onebert("check", "--json")
    assert code == 1
    facts = json.loads(out)
    assert facts["versions"] == 3
    assert {(problem["task"], problem["version"], problem["repaired"]) for problem in facts["problems"]} == {
        ("spam", 1, False),
        ("tone", 1, False),
    }
    assert sorted(problem["problem"].rpartition(" ")[2] for problem in facts["problems"]) == ["missing", "says"]
    assert err == "error: 2 of 3 versions cannot be served as they are\n"
    other.unlink()
    os.mkfifo(other)
    code, out, _ = onebert("check")
    assert code == 1
    assert "spam@1 " in out
    assert "is missing" in out
    assert "is not a regular file" in " ".join(out.split())


def test_a_damaged_manifest_is_repaired_from_the_file(onebert, store):
    with Registry.open(store) as registry:
        before = registry.version("spam", 3)
    change(store, "UPDATE versions SET manifest = '{}' WHERE task = 'spam' AND version = 3")
    assert onebert("check")[0] == 1
    code, out, _ = onebert("check", "--repair")
    assert (code, "repaired" in out) == (0, True)
    assert onebert("check")[1].startswith("3 versions, 3 of them whole")
    with Registry.open(store) as registry:
        assert registry.version("spam", 3) == before


def test_an_impossible_repair_is_named(onebert, store):
    """The file of one version is what its digest says, and no delta file."""
    data = b"no delta file!"
    digest = hashlib.sha256(data).hexdigest()
    blob(store, make_delta(1)).with_name(digest).write_bytes(data)
    # Its digest begins with 012a and is the first, so that the others come after it.
    named = f"UPDATE versions SET digest = 'sha256:{digest}' WHERE task = 'tone'"
    change(store, "UPDATE versions SET manifest = '{}'", named)
    code, out, err = onebert("check", "--repair", "--json")
    problems = {(problem["task"], problem["version"]): problem for problem in json.loads(out)["problems"]}
    assert {ref: problem["repaired"] for ref, problem in problems.items()} == {
        ("spam", 1): True,
        ("spam", 3): True,
        ("tone", 1): False,
    }
    assert "; not repaired: " in problems["tone", 1]["problem"]
    assert (code, err) == (1, "error: 1 of 3 versions cannot be served as they are\n")


def test_sweeping_keeps_what_is_young_and_takes_what_is_not(onebert, store):
    code, out, _ = onebert("gc")
    assert (code, out.splitlines()[0]) == (0, "0 files (0 bytes) removed")
    assert "1 file (1,024 bytes) of no version:" in out
    assert out.splitlines()[-1] == "kept: found without a version less than 24h ago (--older-than)"
    assert blob(store, make_delta(2)).exists()
    code, out, _ = onebert("gc", "--older-than", "0s", "--json")
    assert [entry["digest"] for entry in json.loads(out)["removed"]] == [make_delta(2).digest]
    assert not blob(store, make_delta(2)).exists()
    assert onebert("check")[0] == 0


def test_unknown_feedback_is_named_and_goes_after_a_day(onebert, store):
    """An older registry lies beside newer feedback: it does not know the task `tone`."""
    row = Feedback("tone", "order-1", Kind.OUTCOME, "calm", {1: "angry"}, datetime.now(UTC), "key:app")
    with join_store(store) as opened, open_samples(opened.database) as samples:
        owner = samples.owner("tone")
        samples.record([(owner, row)])
    facts = json.loads(onebert("check", "--json")[1])
    assert (facts["unknown"], facts["kept"]) == ([], {"samples": 0, "feedback": 1, "damaged": 0})
    assert "0 kept answers, 1 rows of feedback" in onebert("check")[1]
    change(store, "DELETE FROM identities WHERE task = 'tone'")
    unknown = {"id": owner.task, "task": None, "samples": 0, "feedback": 1, "since": None}
    code, out, _ = onebert("check", "--json")
    assert (code, json.loads(out)["unknown"]) == (0, [unknown])
    code, out, _ = onebert("check")
    assert "kept answers and feedback of 1 task that the registry does not know:" in out
    assert (code, owner.task[:12] in out) == (0, True)
    assert json.loads(onebert("gc", "--json")[1])["unknown"] == [unknown | {"removed": False}]
    assert owner.task[:12] in onebert("gc")[1]
    code, out, _ = onebert("gc", "--older-than", "0s")
    assert (code, "removed" in out.splitlines()[-1]) == (0, True)
    assert json.loads(onebert("check", "--json")[1])["unknown"] == []


@on_sqlite
@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["table", "json"])
def test_a_sweep_that_fails_halfway_prints_what_went_and_then_the_error(onebert, store, monkeypatch, as_json):
    with Registry.open(store) as registry:
        registry.delete_version("spam", 3)
    first, last = sorted((make_delta(2), make_delta(3)), key=lambda delta: delta.digest)
    remove = Path.unlink

    def refuse_the_last(path, *arguments, **options):
        if path == blob(store, last):
            raise OSError(errno.EIO, "Input/output error")
        remove(path, *arguments, **options)

    monkeypatch.setattr(Path, "unlink", refuse_the_last)
    code, out, err = onebert("gc", "--older-than", "0s", *as_json)
    assert (code, err) == (1, "error: the store's disk refuses: Input/output error\n")
    assert (blob(store, first).exists(), blob(store, last).exists()) == (False, True)
    if as_json:
        assert [entry["digest"] for entry in json.loads(out)["removed"]] == [first.digest]
        assert [entry["digest"] for entry in json.loads(out)["kept"]] == [last.digest]
    else:
        assert out.startswith("1 file (1,024 bytes) removed\n1 file (1,024 bytes) of no version:\n")
        assert "kept:" not in out
        assert short(last) in out


@on_sqlite
@pytest.mark.parametrize("time", ["1", "h", "-1h", "1w", "24h ", "9999999d"])
def test_a_time_is_a_number_and_a_unit(onebert, store, time):
    code, _, err = onebert("gc", f"--older-than={time}")
    assert (code, "is not a time" in err) == (1, True)


@on_sqlite
def test_a_deleted_version_is_brought_back_under_a_name(onebert, store):
    code, out, err = onebert("recover", short(make_delta(2)), "--task", "spam")
    assert (code, out, err) == (0, f"{short(make_delta(2))} is spam@4\n", "")
    assert versions(store)["spam", 4] == make_delta(2).digest


def test_a_lost_database_is_made_anew_of_the_files(onebert, store, tmp_path):
    before = set(versions(store).values())
    if store.registry.startswith("sqlite"):
        for path in (tmp_path / "store").glob("registry.sqlite3*"):
            path.unlink()
    else:
        change(store, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    code, _, err = onebert("check")
    assert (code, "onebert store recover" in err) == (1, True)
    assert not (tmp_path / "store/registry.sqlite3").exists()
    with pytest.raises(StoreCorrupt, match="blobs but no database"):
        Registry.open(store)
    code, out, err = onebert("recover")
    assert (code, err, len(out.splitlines())) == (0, "", 4)
    registered = versions(store)
    assert set(registered.values()) == before | {make_delta(2).digest}
    assert ("recovered-" + short(make_delta(1)), 1) in registered
    assert onebert("check")[1].startswith("4 versions, 4 of them whole")


@on_sqlite
def test_what_is_no_delta_file_is_left_and_the_others_come_back(onebert, store):
    blob(store, make_delta(1)).with_name("0" * 64).write_bytes(b"nonsense")
    code, out, err = onebert("recover")
    assert (code, out) == (1, f"{short(make_delta(2))} is recovered-{short(make_delta(2))}@1\n")
    assert err.startswith("error: 000000000000: the blob sha256:0000")
    assert err.endswith("error: 1 file was not recovered\n")


@on_sqlite
@pytest.mark.parametrize(
    ("digest", "message"),
    [("abc", "at least 8 digits"), ("0" * 64, "no blob"), ("sha256:../../etc", "no blob")],
)
def test_a_digest_that_is_none_is_refused(onebert, store, digest, message):
    code, _, err = onebert("recover", digest)
    assert (code, message in err, err.count("\n")) == (1, True, 1)


@on_sqlite
def test_recovering_beside_the_owner_is_refused(onebert, store):
    with Registry.open(store):
        assert onebert("recover")[::2] == (1, "error: another process is using this store\n")


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_where_nobody_is_the_owner_versions_come_back_beside_the_replicas(onebert, store):
    with Registry.open(store) as registry:
        assert onebert("recover", "--task", "back")[0] == 0
        assert registry.task("back").versions == (1,)


@on_sqlite
@pytest.mark.parametrize("command", ["check", "gc", "recover"])
def test_a_folder_that_is_no_store_is_left_alone(onebert, tmp_path, command):
    (tmp_path / "store").mkdir()
    assert onebert(command)[::2] == (1, "error: there is no store in this folder\n")
    assert list((tmp_path / "store").iterdir()) == []


@on_sqlite
@pytest.mark.parametrize("url", ["mysql://u:s3cret@h/db", "/some/file", "sqlite://x", "sqlite:///", "sqlite:///a?b=1"])
def test_an_address_that_is_none_is_one_line_without_it(onebert, store, url):
    code, _, err = onebert("check", "--registry", url)
    assert (code, err.count("\n"), "s3cret" in err) == (1, 1, False)
    assert "ONEBERT_REGISTRY is a URL" in err or "sqlite:///FILE" in err


@on_sqlite
def test_without_psycopg_one_line_says_what_to_install(onebert, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("onebert_store.registry.dialects.postgresql")]:
        monkeypatch.delitem(sys.modules, name)
    code, _, err = onebert("check", "--registry", "postgresql://localhost/onebert")
    assert (code, err) == (
        1,
        "error: a registry in PostgreSQL needs psycopg: pip install '.[postgresql]' in the checkout\n",
    )
