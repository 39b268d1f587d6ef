"""`onebert status` of a store at rest, which has the form of its server; and a picture that refreshes."""

import json
import sqlite3
from contextlib import closing

import pytest
from rich.console import Console
from rich.text import Text

from onebert_server.cli.status import command
from onebert_server.client import as_dict
from onebert_server.client.exchange import decode
from onebert_server.contract.status import StatusResponse, TaskInForce
from onebert_store.command import console
from onebert_store.errors import ServerUnreachable
from runtimes import ask, move, opened_with_tasks

# Only a running server knows these.
SEEN = ("a_minute", "p95", "abstained", "cut", "shift", "alarm")
RULES = {"must": [{"text": "a text", "label": "label 1"}]}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A store with a split, a shadow, and a gate that is not for `live`; its status by its server."""
    monkeypatch.setattr(console.out, "_width", 240)
    with opened_with_tasks(tmp_path / "store") as runtime:
        gate = {"rules": RULES | {"aliases": ["next"]}}
        assert ask(runtime, "PUT", "/v1/tasks/tone/gate", json=gate).is_success
        move(runtime, {"split": {"1": 60, "2": 40}, "shadow": [{"version": 3, "percent": 10}]})
        every = decode(ask(runtime, "GET", "/v1/status"), StatusResponse).tasks
        task = decode(ask(runtime, "GET", "/v1/tasks/tone/status"), TaskInForce)
    return ("--data-dir", str(tmp_path / "store")), every, task


def test_a_store_at_rest_has_the_status_of_its_server(onebert, stored):
    place, every, of_one = stored
    code, out, err = onebert("status", *place, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [as_dict(task) | dict.fromkeys(SEEN) for task in every]
    record = json.loads(onebert("status", "tone", *place, "--json")[1])
    expected = as_dict(of_one) | dict.fromkeys(SEEN)
    assert {name: record[name] for name in expected} == expected
    assert record["gate"] == {"aliases": ["next"], "rows": 0, "checks": 1}
    assert [version["version"] for version in record["versions"]] == [1, 2, 3]
    assert "there is no task nobody" in onebert("status", "nobody", *place)[2]


def test_both_forms_say_what_live_means_and_why_it_moved(onebert, stored):
    place, _, _ = stored
    listed = onebert("status", *place)[1]
    assert "60 % 1, 40 % 2, shadow 3 (10 %)" in listed
    assert "127.0.0.1: 1 → 60 % 1, 40 % 2, shadow 3 began (10 %)" in listed
    assert "1 task, 0 alarms" in listed
    described = onebert("status", "tone", *place)[1]
    for line in ("of next, checks: 1, rows: 0", "new → 1"):
        assert line in described
    assert "next:" not in described
    assert "onebert promote" not in described


def test_looking_at_a_store_at_rest_changes_nothing_in_it(onebert, tmp_path):
    """Neither one of today nor an older one, which a look refuses to upgrade."""
    with opened_with_tasks(tmp_path / "store"):
        pass
    (tmp_path / "store/samples.sqlite3").unlink(missing_ok=True)

    def content():
        return {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir() if path.is_file()}

    looks = (["status"], ["status", "tone"], ["audit"], ["keys", "list"], ["store", "check"])
    before = content()
    for look in looks:
        assert onebert(*look, "--data-dir", str(tmp_path / "store"))[0] == 0, look
    assert content() == before
    with closing(sqlite3.connect(tmp_path / "store/registry.sqlite3")) as connection:
        connection.execute("PRAGMA user_version = 9")
    before = content()
    for look in looks:
        code, _, err = onebert(*look, "--data-dir", str(tmp_path / "store"))
        assert (code, "has schema 9 of its registry tables" in err, "start one of this version" in err) == (
            1,
            True,
            True,
        )
    assert content() == before


def test_watching_takes_a_terminal(onebert):
    code, out, err = onebert("status", "--watch")
    assert (code, out) == (2, "")
    assert "--watch is for a terminal" in err


def test_a_picture_refreshes_until_it_is_interrupted(monkeypatch):
    monkeypatch.setattr(console, "out", Console(force_terminal=True, width=80))
    pictures = iter([Text("one"), ServerUnreachable("no server"), Text("two")])

    def picture():
        next_picture = next(pictures)
        if isinstance(next_picture, Exception):
            raise next_picture
        shown.append(next_picture.plain)
        return next_picture

    def pause():
        if shown[-1] == "two":
            raise KeyboardInterrupt

    shown = []
    command.refreshed(picture, pause)
    assert shown == ["one", "two"]
