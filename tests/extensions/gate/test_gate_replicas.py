"""A gate that one replica takes holds on every replica."""

from replicas import TEXT


def test_a_gate_that_one_replica_takes_holds_on_every_replica(replicas):
    for seed in (1, 2):
        replicas.upload(0, "task", seed)
    path, rules = "/v1/tasks/task/gate", {"must": [{"text": TEXT, "label": "no such label"}]}
    moved = {"json": {"version": 2}, "headers": {"If-Match": '"1"'}}
    seq = replicas.change(0, "PUT", path, json={"rules": rules})
    assert replicas.ask(1, "GET", path, seq).json()["rules"] == rules
    assert replicas.ask(1, "PUT", "/v1/tasks/task/aliases/live", **moved).json()["code"] == "gate-failed"
    seq = replicas.change(0, "DELETE", path)
    assert replicas.ask(1, "PUT", "/v1/tasks/task/aliases/live", seq, **moved).status_code == 200
