"""`onebert keys` and `onebert audit` on a store, without a server."""

import json

import pytest

from onebert_server.client import as_dict
from onebert_server.client.exchange import decode
from onebert_server.contract.administration import AuditResponse
from onebert_store.command import console
from runtimes import ask, move, opened_with_tasks


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEBERT_DATA_DIR", str(tmp_path / "store"))
    # Wide enough for a row of each table, whatever the terminal or the worker of the tests has.
    monkeypatch.setattr(console.out, "_width", 240)


@pytest.mark.parametrize("command", [["keys", "list"], ["audit"]])
def test_a_named_store_goes_before_the_variables_server(onebert, monkeypatch, tmp_path, command):
    """One rule, that of `onebert status`."""
    nothing = "error: there is no store in this folder\n"
    assert onebert(*command)[2] == nothing
    monkeypatch.setenv("ONEBERT_URL", "http://127.0.0.1:1")
    for asked in (command, ["status"]):
        code, _, err = onebert(*asked)
        assert (code, "127.0.0.1:1" in err) == (1, True), err
        assert onebert(*asked, "--data-dir", str(tmp_path))[2] == nothing


def test_the_trail_of_a_store_is_that_of_its_server(onebert, tmp_path):
    with opened_with_tasks(tmp_path / "store") as runtime:
        split = {"split": {"1": 60, "2": 40}, "sticky": "principal", "shadow": [{"version": 3, "percent": 10}]}
        move(runtime, split)
        trail = decode(ask(runtime, "GET", "/v1/audit"), AuditResponse)
    code, out, err = onebert("audit", "--json")
    assert (code, err) == (0, "")
    assert list(map(json.loads, out.splitlines())) == list(map(as_dict, trail.changes))
    assert "tone@live 1 → 60 % 1, 40 % 2 by principal, shadow 3 began (10 %)" in onebert("audit")[1]
