"""`onebert status` of a store at rest, which has the form of its server; and a picture that refreshes."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest
from rich.console import Console
from rich.text import Text

from onebert_server.cli.status import command
from onebert_server.cli.status.tables import move_text, overview
from onebert_server.client import as_dict
from onebert_server.client.exchange import decode
from onebert_server.contract.status import Alarm, AliasInForce, Move, StatusResponse, TaskInForce, TaskStatus
from onebert_store.command import console
from onebert_store.errors import ServerUnreachable
from runtimes import ask, move, opened_with_tasks
from stores import statements

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
        one = decode(ask(runtime, "GET", "/v1/tasks/tone/status"), TaskInForce)
    return ("--data-dir", str(tmp_path / "store")), every, one


def test_a_store_at_rest_has_the_status_of_its_server_but_for_traffic(onebert, stored):
    place, every, one = stored
    code, out, err = onebert("status", *place, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [as_dict(task) | dict.fromkeys(SEEN) for task in every]
    found = json.loads(onebert("status", "tone", *place, "--json")[1])
    expected = as_dict(one) | dict.fromkeys(SEEN)
    assert {name: found[name] for name in expected} == expected
    assert found["gate"] == {"aliases": ["next"], "rows": 0, "checks": 1}
    assert [version["version"] for version in found["versions"]] == [1, 2, 3]
    assert "there is no task nobody" in onebert("status", "nobody", *place)[2]


def test_a_store_at_rest_is_read_at_one_moment_and_one_task_alone(onebert, stored):
    place, _, _ = stored
    with statements() as every:
        onebert("status", *place)

    def whole(seen):
        """The reads of all versions or of all aliases; a read of no row, by which a store is checked, has a limit."""
        read = [sql for sql in seen if "FROM versions" in sql or "FROM aliases" in sql]
        return [sql for sql in read if "WHERE" not in sql and "LIMIT" not in sql]

    assert len(whole(every)) == 2
    with statements() as one:
        onebert("status", "tone", *place)
    assert whole(one) == []


def test_both_forms_say_what_live_means_and_why_it_moved(onebert, stored):
    place, _, _ = stored
    listed = onebert("status", *place)[1]
    assert "60 % 1, 40 % 2, shadow 3 (10 %)" in listed
    assert "127.0.0.1: 1 → 60 % 1, 40 % 2, shadow 3 began (10 %)" in listed
    assert "1 task, 0 alarms" in listed
    described = onebert("status", "tone", *place)[1]
    for said in ("of next, checks: 1, rows: 0", "new → 1"):
        assert said in described
    assert "next:" not in described
    assert "onebert promote" not in described


def test_the_list_is_one_line_a_task_at_80_columns_with_what_needs_attention_last(monkeypatch):
    monkeypatch.setattr(console.out, "_width", 80)
    move = Move(at=datetime.now(UTC), who="key:somebody-with-a-name", alias="canary", what="deleted, was 1")
    live = AliasInForce(alias="live", version=1, words="90 % 1, 10 % 2 by principal, shadow 3", ungated=[], ends=[])
    alarm = Alarm(since=move.at, version=1, words="other labels than its reference")
    tasks = [
        TaskStatus(
            name=f"task-{n}-{'of-a-long-name' * (n % 3)}", base="a" if n % 2 else None, live=live, last_move=move,
            alarm=alarm if n == 3 else None, unavailable={"1": "gone"} if n == 5 else {}, lacks={},
        )
        for n in range(45)
    ]  # fmt: skip
    with console.out.capture() as printed:
        console.out.print(overview(tasks))
    lines = printed.get().splitlines()
    assert len(lines) == 2 + 45 + 1
    assert max(map(len, lines)) <= 80
    assert [line.split()[0].split("-")[1] for line in lines[-3:-1]] == ["5", "3"]
    assert "base" not in lines[0]
    assert move_text(move).endswith("key:somebody-with-a-name: canary deleted, was 1")


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


def test_a_picture_refreshes_until_it_is_interrupted_and_outlives_its_server(monkeypatch):
    monkeypatch.setattr(console, "out", Console(force_terminal=True, width=80))
    pictures = iter([Text("one"), ServerUnreachable("no server"), Text("two")])

    def picture():
        found = next(pictures)
        if isinstance(found, Exception):
            raise found
        shown.append(found.plain)
        return found

    def pause():
        if shown[-1] == "two":
            raise KeyboardInterrupt

    shown = []
    command.refreshed(picture, pause)
    assert shown == ["one", "two"]


def test_watching_takes_a_terminal(onebert):
    code, out, err = onebert("status", "--watch")
    assert (code, out) == (2, "")
    assert "--watch is for a terminal" in err
