"""Keys of the registry over HTTP and by the command, in one process and with front ends; quotas; the audit trail."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from both_clients import BOTH
from onebert_server.client import KeyQuotas
from onebert_store.errors import (
    Forbidden,
    KeyNotFound,
    OneBertError,
    TaskNotFound,
    TooManyAttempts,
    Unauthorized,
)
from servers import Task, layouts, run_onebert, wait_until
from tenants import ROOT_KEY

pytestmark = layouts
TEXT = "please help my order is late"
SETTINGS = {"api_keys": ROOT_KEY}
STORED = {"acme-tone": Task(), "blue-tone": Task()}
# What a key that is not in force meets; the second, where it is tried as often as these tests do.
KEPT_OUT = Unauthorized, TooManyAttempts


@pytest.fixture
def root(server):
    with server.client(api_key=ROOT_KEY) as made:
        yield made


def keys(server, *arguments):
    """Runs `onebert keys` beside the server, on the server's store."""
    done = run_onebert("keys", *arguments, data_dir=server.folder / "data")
    assert done.returncode == 0, done.stderr
    return done.stdout


def works(client):
    try:
        client.classify("acme-tone", TEXT)
    except KEPT_OUT:
        return False
    return True


@pytest.fixture(**BOTH)
def ask(request, server):
    """Calls one method of either client of the client library, with the root key or another."""

    def call(method, *arguments, key=ROOT_KEY):
        with request.param(server.url, key) as client:
            return getattr(client, method)(*arguments)

    return call


def test_without_a_key_only_readiness_is_seen(ask):
    """The first test, since requests without a valid key are limited."""
    assert ask("ready", key=None) is True
    with pytest.raises(Unauthorized):
        ask("tasks", key=None)


def test_a_key_is_made_beside_the_server_and_revoked(server):
    key = keys(server, "create", "--name", "app", "--scope", "classify", "--tasks", "acme-*").strip()
    with server.client(api_key=key) as client:
        # A replica follows within seconds, and so does each of its front ends.
        wait_until(lambda: all(works(client) for _ in range(8)))
        with pytest.raises(TaskNotFound):
            client.classify("blue-tone", TEXT)
        with pytest.raises(Forbidden):
            client.push("acme-tone", Task(seed=2).file)
        assert [key["name"] for key in client.tasks()] == ["acme-tone"]
        [listed] = [key for key in json.loads(keys(server, "list", "--json")) if key["name"] == "app"]
        assert (listed["state"], listed["scopes"], listed["tasks"]) == ("valid", ["classify"], ["acme-*"])
        keys(server, "revoke", listed["id"])
        wait_until(lambda: not any(works(client) for _ in range(8)))
        [listed] = [key for key in json.loads(keys(server, "list", "--json")) if key["name"] == "app"]
        assert listed["state"] == "revoked"


def test_a_quota_of_tokens_counts_explanations(server, root):
    body = {"name": "explained", "scopes": ["classify"], "tasks": ["acme-*"], "quotas": {"tokens": 0.01}}
    key = root.send("POST", "/v1/keys", json=body).json()["key"]
    answers = []

    def asked():
        try:
            route = "/v1/tasks/acme-tone/classify"
            answers.append(client.send("POST", route, json={"inputs": TEXT, "explain": True}).json()["results"][0])
        except KEPT_OUT:
            return False
        return True

    with server.client(api_key=key) as client:
        wait_until(asked)
        with pytest.raises(OneBertError) as refused:
            client.classify("acme-tone", TEXT)
    assert (refused.value.status, refused.value.code) == (429, "over-quota")
    assert root.classify("acme-tone", TEXT)["results"], "another key has its own"
    # Seconds until all is paid, a hundred for each token: of the text, and of it without each word.
    words = len(answers[0]["explanation"]["words"])
    assert words > 2
    assert refused.value.retry_after > 100 * words * (answers[0]["tokens"] - 3)


def test_the_audit_trail_says_who_did_what_by_which_request(server, root):
    headers = {"X-Request-Id": "the-move", "If-Match": '"1"'}
    root.push("audited", Task(seed=6).file)
    root.push("audited", Task(seed=7).file)
    root.send("PUT", "/v1/tasks/audited/aliases/live", json={"version": 2}, headers=headers)
    root.send("DELETE", "/v1/tasks/audited")
    every = root.send("GET", "/v1/audit?task=audited&limit=3").json()
    rest = root.send("GET", f"/v1/audit?task=audited&after={every['next']}").json()
    changes = every["changes"] + rest["changes"]
    assert [change["action"] for change in changes] == ["upload", "upload", "promote", "delete-task"]
    assert (changes[2]["before"], changes[2]["version"], changes[2]["request"]) == (1, 2, "the-move")
    assert rest["next"] is None
    assert len({change["principal"] for change in changes}) == 1
    assert changes[0]["principal"].startswith("key:")
    printed = run_onebert("audit", "--task", "audited", "--json", data_dir=server.folder / "data").stdout
    assert [json.loads(line)["seq"] for line in printed.splitlines()] == [change["seq"] for change in changes]
    arguments = "audit", "--task", "audited", "--since", "1h"
    table = run_onebert(*arguments, data_dir=server.folder / "data", env={"COLUMNS": "200"}).stdout
    assert "the-move" in table
    assert "1 → 2" in table


def test_the_client_library_makes_lists_and_revokes_keys(ask, server):
    end = datetime.now(UTC) + timedelta(days=1)
    made = ask("create_key", "library", ["promote"], ["acme-*", "blue-*"], "acme-tone", KeyQuotas(tasks=3), end)
    [listed] = [entry for entry in ask("keys") if entry.id == made.id]
    assert (listed.name, listed.scopes, listed.tasks) == ("library", ["promote"], ["acme-*", "blue-*"])
    assert (listed.default_task, listed.quotas, listed.state) == ("acme-tone", KeyQuotas(tasks=3), "valid")
    assert listed.expires_at == end

    def is_let_in():
        try:
            return [task.name for task in ask("tasks", key=made.key)] == ["acme-tone", "blue-tone"]
        except KEPT_OUT:
            return False

    wait_until(is_let_in)
    for method in ("keys", "audit"):
        with pytest.raises(Forbidden):
            ask(method, key=made.key)
    ask("revoke_key", made.id)
    wait_until(lambda: not is_let_in())
    assert [entry.state for entry in ask("keys") if entry.id == made.id] == ["revoked"]
    changes = [
        entry for entry in ask("audit", 0, 1000, None, None, made.created_at) if entry.key == f"library/{made.id}"
    ]
    assert [entry.action for entry in changes] == ["mint-key", "revoke-key"]
    with pytest.raises(KeyNotFound):
        ask("revoke_key", "000000000000")


def test_the_commands_do_over_http_what_they_do_in_the_store(server):
    def run(*arguments, api_key=ROOT_KEY):
        return run_onebert(*arguments, "--url", server.url, api_key=api_key)

    options = "--name", "remote", "--scope", "classify", "--tasks", "acme-*", "--expires", "1d", "--requests", "2.5"
    key = run("keys", "create", *options).stdout.strip()
    with server.client(api_key=key) as client:
        wait_until(lambda: works(client))
        here = json.loads(run("keys", "list", "--json").stdout)
        assert here == json.loads(keys(server, "list", "--json"))
        [listed] = [key for key in here if key["name"] == "remote"]
        assert (listed["state"], listed["quotas"]) == ("valid", {"requests": 2.5})
        done = run("keys", "revoke", listed["id"])
        assert done.stdout == f"key {listed['id']} is revoked\n"
        wait_until(lambda: not works(client))
    trail = run("audit", "--since", "1h", "--json").stdout
    assert json.loads(trail.splitlines()[-1])["key"] == f"remote/{listed['id']}"
    assert trail == run_onebert("audit", "--since", "1h", "--json", data_dir=server.folder / "data").stdout
    refused = run("keys", "list", api_key=key)
    assert (refused.returncode, refused.stderr.count("\n"), refused.stdout) == (1, 1, "")
