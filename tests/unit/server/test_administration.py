"""`onebert keys` and `onebert audit` on a store, without a server."""

import json
from datetime import datetime

import pytest

from onebert_server.client import as_dict
from onebert_server.client.exchange import decode
from onebert_server.contract.administration import AuditResponse
from onebert_store.command import console
from onebert_store.registry.registry import Registry
from runtimes import ask, move, opened_with_tasks


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEBERT_DATA_DIR", str(tmp_path / "store"))
    # Wide enough for a row of each table, whatever the terminal or the worker of the tests has.
    monkeypatch.setattr(console.out, "_width", 240)


def test_a_list_of_keys_says_what_each_is_for_and_how_much_and_until_when(onebert, tmp_path):
    Registry.open(tmp_path / "store").close()
    create = ["keys", "create", "--scope", "classify", "--tasks", "acme-*"]
    assert onebert(*create, "--name", "ci", "--expires", "90d")[0] == 0
    quotas = ["--requests", "50", "--tokens", "20000.5", "--max-tasks", "3", "--max-bytes", "1000000"]
    assert onebert(*create, "--name", "shop", "--default-task", "acme-tone", *quotas)[0] == 0
    code, out, err = onebert("keys", "list")
    assert (code, err) == (0, "")
    head, _, ci, shop = (line.rstrip() for line in out.splitlines())
    found = json.loads(onebert("keys", "list", "--json")[1])

    def cells(line):
        starts = [head.index(name) for name in ("name", "default task", "quotas", "created", "expires", "state")]
        return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]

    def time(key, field):
        return f"{datetime.fromisoformat(found[key][field]):%Y-%m-%d %H:%M}"

    assert cells(ci)[1:] == ["–", "–", time(0, "created_at"), time(0, "expires_at"), "valid"]
    allowed = "3 tasks, 1,000,000 bytes, 50 requests/s, 20,000.5 tokens/s"
    assert cells(shop)[1:] == ["acme-tone", allowed, time(1, "created_at"), "–", "valid"]


@pytest.mark.parametrize("command", [["keys", "list"], ["audit"]])
def test_the_variable_names_the_server_unless_the_command_names_a_store(onebert, monkeypatch, tmp_path, command):
    """One rule, that of `onebert status`."""
    nothing = "error: there is no store in this folder\n"
    assert onebert(*command)[2] == nothing
    monkeypatch.setenv("ONEBERT_URL", "http://127.0.0.1:1")
    for asked in (command, ["status"]):
        code, _, err = onebert(*asked)
        assert (code, "127.0.0.1:1" in err) == (1, True), err
        assert onebert(*asked, "--data-dir", str(tmp_path))[2] == nothing


def test_the_trail_of_a_store_with_a_split_and_a_shadow_is_that_of_its_server(onebert, tmp_path):
    with opened_with_tasks(tmp_path / "store") as runtime:
        split = {"split": {"1": 60, "2": 40}, "sticky": "principal", "shadow": [{"version": 3, "percent": 10}]}
        move(runtime, split)
        trail = decode(ask(runtime, "GET", "/v1/audit"), AuditResponse)
    code, out, err = onebert("audit", "--json")
    assert (code, err) == (0, "")
    assert list(map(json.loads, out.splitlines())) == list(map(as_dict, trail.changes))
    assert "tone@live 1 → 60 % 1, 40 % 2 by principal, shadow 3 began (10 %)" in onebert("audit")[1]
