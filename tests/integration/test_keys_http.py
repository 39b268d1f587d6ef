"""Keys of the registry over HTTP and by the command, in one process and with front ends; quotas; the audit trail."""

import json

import pytest

from onebert_store.errors import Forbidden, InvalidInput, KeyNotFound, OneBertError, TaskNotFound, Unauthorized
from servers import Server, Task, layouts, run_onebert, wait_until
from tenants import ROOT_KEY

pytestmark = layouts
TEXT = "please help my order is late"


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("keys"), front_ends=request.param, api_keys=ROOT_KEY) as running:
        with running.client(api_key=ROOT_KEY) as root:
            for name in ("acme-tone", "blue-tone"):
                root.push(name, Task().file)
        yield running


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
    except Unauthorized:
        return False
    return True


def test_a_key_is_made_beside_the_server_and_revoked(server):
    key = keys(server, "create", "--name", "app", "--scope", "classify", "--tasks", "acme-*").strip()
    with server.client(api_key=key) as client:
        # A replica follows within seconds, and so does each of its front ends.
        wait_until(lambda: all(works(client) for _ in range(8)))
        with pytest.raises(TaskNotFound):
            client.classify("blue-tone", TEXT)
        with pytest.raises(Forbidden):
            client.push("acme-tone", Task(seed=2).file)
        assert [one["name"] for one in client.tasks()] == ["acme-tone"]
        [listed] = [one for one in json.loads(keys(server, "list", "--json")) if one["name"] == "app"]
        assert (listed["state"], listed["scopes"], listed["tasks"]) == ("valid", ["classify"], ["acme-*"])
        keys(server, "revoke", listed["id"])
        wait_until(lambda: not any(works(client) for _ in range(8)))
        [listed] = [one for one in json.loads(keys(server, "list", "--json")) if one["name"] == "app"]
        assert listed["state"] == "revoked"


def test_a_key_is_made_and_revoked_over_http(server, root):
    body = {"name": "shop", "scopes": ["classify"], "tasks": ["acme-*"], "default_task": "acme-tone@1"}
    made = root.send("POST", "/v1/keys", json=body).json()
    with server.client(api_key=made["key"]) as client:
        wait_until(lambda: all(works(client) for _ in range(8)))
        # A request that names no task means the key's own.
        [answer] = client.send("POST", "/v1/classify", json={"items": [{"text": TEXT}]}).json()["results"]
        assert (answer["task"], answer["version"]) == ("acme-tone", 1)
        for path in ("/v1/keys", "/v1/audit", "/metrics"):
            with pytest.raises(Forbidden):
                client.send("GET", path)
        listed = root.send("GET", "/v1/keys").json()["keys"]
        assert made["id"] in {one["id"] for one in listed}
        assert made["key"] not in str(listed)
        root.send("DELETE", f"/v1/keys/{made['id']}")
        wait_until(lambda: not any(works(client) for _ in range(8)))
    with pytest.raises(KeyNotFound):
        root.send("DELETE", "/v1/keys/000000000000")


def test_who_has_no_default_task_names_one(root):
    with pytest.raises(InvalidInput):
        root.send("POST", "/v1/classify", json={"items": [{"task": "acme-tone", "text": TEXT}, {"text": TEXT}]})


def test_quotas_are_refused_with_the_time_to_wait(server, root):
    body = {"name": "slow", "scopes": ["classify"], "tasks": ["acme-*"], "quotas": {"tokens": 0.01}}
    key = root.send("POST", "/v1/keys", json=body).json()["key"]
    with server.client(api_key=key) as client:
        wait_until(lambda: works(client))
        with pytest.raises(OneBertError) as refused:
            client.classify("acme-tone", TEXT)
        assert (refused.value.status, refused.value.code) == (429, "over-quota")
        assert refused.value.retry_after > 100
    assert root.classify("acme-tone", TEXT)["results"]


def test_a_quota_of_tasks_is_refused(server, root):
    body = {"name": "small", "scopes": ["upload"], "tasks": ["small-*"], "quotas": {"tasks": 1}}
    key = root.send("POST", "/v1/keys", json=body).json()["key"]

    def pushed(name, file):
        with server.client(api_key=key) as client:
            try:
                return client.push(name, file)["version"]
            except Unauthorized:
                return None
            except OneBertError as refused:
                return refused.status, refused.code, refused.retry_after

    wait_until(lambda: pushed("small-one", Task(seed=3).file) == 1)
    wait_until(lambda: pushed("small-two", Task(seed=4).file) == (429, "over-quota", None))
    wait_until(lambda: pushed("small-one", Task(seed=5).file) == 2)


def test_the_audit_trail_says_who_did_what_by_which_request(server, root):
    headers = {"X-Request-Id": "the-move", "If-Match": '"1"'}
    root.push("audited", Task(seed=6).file)
    root.push("audited", Task(seed=7).file)
    root.send("PUT", "/v1/tasks/audited/aliases/live", json={"version": 2}, headers=headers)
    root.send("DELETE", "/v1/tasks/audited")
    every = root.send("GET", "/v1/audit?task=audited&limit=3").json()
    rest = root.send("GET", f"/v1/audit?task=audited&after={every['next']}").json()
    found = every["changes"] + rest["changes"]
    assert [one["action"] for one in found] == ["upload", "upload", "promote", "delete-task"]
    assert (found[2]["before"], found[2]["version"], found[2]["request"]) == (1, 2, "the-move")
    assert rest["next"] is None
    assert len({one["principal"] for one in found}) == 1
    assert found[0]["principal"].startswith("key:")
    printed = run_onebert("audit", "--task", "audited", "--json", data_dir=server.folder / "data").stdout
    assert [json.loads(line)["seq"] for line in printed.splitlines()] == [one["seq"] for one in found]
    arguments = "audit", "--task", "audited", "--since", "1h"
    table = run_onebert(*arguments, data_dir=server.folder / "data", env={"COLUMNS": "200"}).stdout
    assert "the-move" in table
    assert "1 → 2" in table
