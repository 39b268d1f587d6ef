"""A task's gate over HTTP: it lets an alias move, refuses, is forced, follows the task, and stays the owner's."""

import asyncio
import logging
from threading import Event

import pytest

from loops import Clock
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.principal import root
from onebert_server.extensions.gate.judge import JudgedRows, checks_of, measure
from onebert_server.extensions.gate.rules import Gate, PinnedRow, digest_of_rows
from onebert_store.errors import DeadlineExceeded
from runtimes import ask, client, get, opened, upload
from servers import Task, store
from tenants import Asker, tenants_runtime

WORDS = "late broken lovely bad good great parcel invoice screen refund help password".split()
TEXTS = [f"{word} {other}" for word in WORDS[:6] for other in WORDS[6:]]
OLD, NEW = Task(seed=1), Task(seed=2)
GATE = "/v1/tasks/tone/gate"


@pytest.fixture
def runtime(tmp_path):
    with opened(tmp_path) as runtime:
        for task in (OLD, NEW, Task(seed=3)):
            upload(runtime, "tone", task)
        yield runtime


def rows_of(task, wrong=()):
    """Rows that a task answers rightly, except those at some places; one slice each for even and odd places."""
    right = [task.label(text) for text in TEXTS]
    labels = [f"label {(int(label[-1]) + (at in wrong)) % 3}" for at, label in enumerate(right)]
    return [
        {"text": text, "label": label, "slices": {"half": "odd" if at % 2 else "even"}}
        for at, (text, label) in enumerate(zip(TEXTS, labels, strict=True))
    ]


def set_gate(runtime, rules, rows=()):
    return ask(runtime, "PUT", GATE, json={"rules": rules, "rows": list(rows)})


def move(runtime, version, at=1, alias="live", **body):
    condition = {"If-None-Match": "*"} if at is None else {"If-Match": f'"{at}"'}
    path = f"/v1/tasks/tone/aliases/{alias}"
    return ask(runtime, "PUT", path, json={"version": version} | body, headers=condition)


def live(runtime):
    return get(runtime, "/v1/tasks/tone").json()["aliases"]["live"]


def test_a_gate_lets_pass_what_holds_every_rule(runtime):
    rows = rows_of(NEW)
    must = [{"text": TEXTS[0], "label": rows[0]["label"]}]
    rules = {"min": {"accuracy": 1.0, "macro_f1": 1.0}, "max": {"flips": 1.0}, "must": must}
    rules |= {"slices": {"columns": ["half"], "worst_drop": 0.0}}
    answer = set_gate(runtime, rules, rows)
    assert answer.status_code == 200, answer.text
    pinned = digest_of_rows([PinnedRow.model_validate(row) for row in rows])
    assert (
        answer.json()
        == get(runtime, GATE).json()
        == {
            "task": "tone",
            "rules": rules | {"pinned": pinned},
            "refused": {},
            "digest": Gate.model_validate(rules | {"pinned": pinned}).digest,
            "rows": len(rows),
        }
    )
    assert move(runtime, 2).status_code == 200
    assert live(runtime) == 2


def test_a_refusal_has_the_numbers_that_the_reference_gives_and_changes_nothing(runtime):
    rows = rows_of(OLD, wrong=range(0, 12, 3))
    rules = {"min": {"macro_f1": 0.9}, "max": {"flips": 0.1}, "slices": {"columns": ["half"], "worst_drop": 0.1}}
    must = [{"text": TEXTS[1], "label": OLD.label(TEXTS[1])}, {"text": TEXTS[2], "label": "no such label"}]
    assert set_gate(runtime, rules | {"must": must}, rows).status_code == 200
    answer = move(runtime, 2)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "gate-failed")
    assert live(runtime) == 1
    report, right = problem["report"], [row["label"] for row in rows]
    candidate, before = ([task.label(text) for text in TEXTS] for task in (NEW, OLD))
    slices = [row["slices"] for row in rows]
    gate = Gate.model_validate(rules)
    numbers = measure(gate, JudgedRows(right, candidate, before, slices))
    assert report["numbers"] == numbers.model_dump()
    expected = [entry.model_dump() for entry in checks_of(gate, numbers, 0)]
    assert report["checks"][:3] == expected
    assert not report["checks"][-1]["passed"]
    assert [entry["right"] for entry in report["must"]][-1] == "no such label"
    assert (report["candidate"]["version"], report["live"]["version"]) == (2, 1)
    # Rows that were right before come first; a report holds no text.
    first = report["worst"][0]
    assert (first["right"], first["live"]) == (right[first["row"] - 1],) * 2
    assert first["candidate"] == candidate[first["row"] - 1] != first["right"]
    assert not any(text in answer.text for text in TEXTS)


def test_a_move_is_forced_with_a_message_that_trail_and_log_keep(runtime, caplog):
    caplog.set_level(logging.INFO)
    set_gate(runtime, {"min": {"accuracy": 1.0}}, rows_of(OLD))
    refused = move(runtime, 2).json()
    [check] = refused["report"]["checks"]
    failed = [f"min.accuracy is {check['value']:.4g}, bound 1"]
    assert refused["detail"] == f"tone@2 does not pass its gate: {failed[0]}"
    for bad in ({"force": True}, {"force": True, "message": ""}, {"force": True, "message": "a\0"}):
        assert move(runtime, 2, **bad).status_code == 422
    assert move(runtime, 2, force=True, message="labels were wrong").status_code == 200
    assert move(runtime, 1, 2, message="it was better").status_code == 200
    # Forced, and nothing fails.
    assert move(runtime, 1, None, "next", force=True, message="a try").status_code == 200
    upload(runtime, "other", OLD)
    for path in ("tone/versions/3?message=no%20use", "other?message=no%20use%20either"):
        assert ask(runtime, "DELETE", f"/v1/tasks/{path}").status_code == 204
    assert ask(runtime, "DELETE", "/v1/tasks/tone/versions/2?message=a%0Ab").status_code == 422
    columns = ("action", "version", "reason", "past_gate", "failed")
    trail = [tuple(map(change.get, columns)) for change in get(runtime, "/v1/audit").json()["changes"]]
    assert trail[-7:] == [
        ("set-gate", None, None, False, None),
        ("promote", 2, "labels were wrong", True, failed),
        ("roll-back", 1, "it was better", False, None),
        ("promote", 1, "a try", True, []),
        ("upload", 1, None, False, None),
        ("delete-version", 3, "no use", False, None),
        ("delete-task", None, "no use either", False, None),
    ]
    assert [record.message for record in caplog.records if record.name == "onebert.moves"] == [
        f"tone@live: 1 → 2, by 127.0.0.1, past the gate ({failed[0]}): labels were wrong",
        "tone@live: rolled back to 1, by 127.0.0.1, it was better",
        "tone@next: new → 1, by 127.0.0.1, past the gate: a try",
        "other@live: new → 1, by (server)",
        "tone@3: deleted, by 127.0.0.1, no use",
        "other: deleted, by 127.0.0.1, no use either",
    ]
    moves = get(runtime, "/v1/tasks/tone/status").json()["moves"]
    assert [(move["reason"], move["past_gate"], move["failed"]) for move in moves[1:3]] == [
        ("it was better", False, None),
        ("labels were wrong", True, failed),
    ]
    metrics = get(runtime, "/metrics").text
    for line in ('onebert_moves_total{action="promote"} 2.0', 'onebert_moves_total{action="delete-task"} 1.0'):
        assert line in metrics


def test_checks_that_take_long_hold_up_no_forced_move(runtime):
    """They get half of its time, and ten seconds at most."""
    given = []

    async def late(_, context):
        given.append(context.deadline - context.arrived)
        raise DeadlineExceeded("too late")

    runtime.hooks.before_move.append(late)
    assert move(runtime, 2).status_code == 504
    for at, seconds in enumerate((4, 30), 1):
        headers = {"If-Match": f'"{at}"', "X-Request-Timeout": str(seconds)}
        body = {"version": at + 1, "force": True, "message": "it burns"}
        assert ask(runtime, "PUT", "/v1/tasks/tone/aliases/live", json=body, headers=headers).status_code == 200
        assert get(runtime, "/v1/tasks/tone/status").json()["moves"][0]["failed"] == ["not judged: too late"]
    assert given[1:] == [pytest.approx(2), pytest.approx(10)]


class Pausing(Clock):
    """Says when somebody waits as long as a `Retry-After` says, in whole seconds; deadlines are fractions."""

    paused = False

    def call_later(self, delay, *given, **more):
        self.paused = self.paused or (isinstance(delay, int) and delay >= 1)
        return super().call_later(delay, *given, **more)


def test_a_gate_goes_on_when_a_full_queue_has_room_again(tmp_path):
    """The engine is held, and each of its callers finds the queue full."""
    store(tmp_path, tone=[OLD, NEW])
    entered, released = Event(), Event()

    def held(_):
        entered.set()
        released.wait()

    async def moved(runtime):
        loop = asyncio.get_running_loop()
        [version] = runtime.directory.pin(["tone"], root("test"))
        host, number = version.slot
        runtime.engine.ask(host, [Tokens([5], [0])], number).add_done_callback(held)
        await asyncio.to_thread(entered.wait)
        async with client(runtime) as web:
            asking = asyncio.create_task(web.post("/v1/tasks/tone/classify", json={"inputs": TEXTS[:3]}))
            while runtime.engine.queue.sequences < 3:
                await asyncio.sleep(0)
            path, at = "/v1/tasks/tone/aliases/live", {"If-Match": '"1"'}
            moving = asyncio.create_task(web.put(path, json={"version": 2}, headers=at))
            while not (moving.done() or loop.paused):
                await asyncio.sleep(0)
            released.set()
            assert (await asking).status_code == 200
            loop.moved += 60
            return await moving

    with opened(tmp_path, max_queue_seconds=1e-9) as runtime, asyncio.Runner(loop_factory=Pausing) as runner:
        set_gate(runtime, {"min": {"accuracy": 1.0}}, rows_of(NEW))
        # A version that is not in memory could not be loaded while the engine is held.
        assert ask(runtime, "POST", "/v1/tasks/tone@2/classify", json={"inputs": "late"}).status_code == 200
        try:
            answer = runner.run(moved(runtime))
        finally:
            released.set()
        assert answer.status_code == 200, answer.text
        assert live(runtime) == 2


def test_an_alias_goes_back_to_the_older_version_before_without_the_gate(runtime):
    assert move(runtime, 3).status_code == 200
    set_gate(runtime, {"min": {"accuracy": 1.0}, "must": [{"text": "a", "label": "none such"}]}, rows_of(NEW))
    assert move(runtime, 2, at=3).status_code == 409
    assert move(runtime, 1, at=3).status_code == 200
    # So does a move that moves nothing; undoing the step back is a step forward again.
    assert move(runtime, 1, at=1).status_code == 200
    assert move(runtime, 3, at=1).status_code == 409


@pytest.mark.parametrize("change", ["force", "older", "set", "delete", "back"])
def test_a_refusal_is_shown_until_a_move_or_another_gate(runtime, change):
    rules = {"must": [{"text": "a", "label": "none such"}], "aliases": ["live", "next"]}
    assert move(runtime, 2).status_code == 200
    set_gate(runtime, rules)
    refused = move(runtime, 3, 2).json()["detail"]
    upload(runtime, "tone", Task(seed=4))
    other = move(runtime, 3, at=None, alias="next").json()["detail"]
    assert get(runtime, GATE).json()["refused"] == {"live": refused, "next": other}
    assert move(runtime, 3, at=None, alias="next", force=True, message="now").status_code == 200
    assert get(runtime, GATE).json()["refused"] == {"live": refused}
    if change in ("force", "back"):
        assert move(runtime, 3, 2, force=True, message="now").status_code == 200
    if change == "back":
        assert move(runtime, 2, 3).status_code == 200
    if change == "older":
        assert move(runtime, 1, 2).status_code == 200
    if change == "delete":
        assert ask(runtime, "DELETE", GATE).status_code == 204
    if change in ("set", "delete"):
        set_gate(runtime, rules)
    assert get(runtime, GATE).json()["refused"] == {}


def test_a_version_passes_the_gate_when_its_share_begins_and_a_shadow_needs_none(runtime):
    rows = rows_of(OLD, wrong=range(0, 12, 3))
    set_gate(runtime, {"min": {"accuracy": 0.6}}, rows)
    path, split = "/v1/tasks/tone/aliases/live", {"split": {"1": 95, "2": 5}}

    def put(body, **more):
        headers = {"If-Match": get(runtime, path).headers["etag"]}
        return ask(runtime, "PUT", path, json=body | more, headers=headers)

    assert sum(NEW.label(row["text"]) == row["label"] for row in rows) < 0.6 * len(rows)
    assert put({"version": 1, "shadow": [{"version": 2}]}).status_code == 200
    refused = put(split)
    assert (refused.status_code, refused.json()["report"]["candidate"]["version"]) == (409, 2)
    assert put(split, force=True, message="five per cent").status_code == 200
    assert put({"split": {"1": 5, "2": 95}}).status_code == 200, "it answers already"
    assert put({"split": {"1": 50, "2": 45, "3": 5}}).json()["report"]["candidate"]["version"] == 3
    assert put({"version": 1}).status_code == 200


def test_a_gate_is_for_its_aliases(runtime):
    rules = {"aliases": ["next"], "must": [{"text": "a", "label": "none such"}]}
    assert set_gate(runtime, rules).status_code == 200
    assert move(runtime, 2, at=None, alias="next").json()["code"] == "gate-failed"
    assert move(runtime, 2, at=None, alias="other").status_code == 200
    assert move(runtime, 2).status_code == 200


def test_a_deleted_gate_refuses_nothing(runtime):
    set_gate(runtime, {"must": [{"text": "a", "label": "none such"}]})
    assert move(runtime, 2).status_code == 409
    assert ask(runtime, "DELETE", GATE).status_code == 204
    assert ask(runtime, "DELETE", GATE).json()["code"] == "gate-not-found"
    assert move(runtime, 2).status_code == 200
    actions = [change["action"] for change in get(runtime, "/v1/audit?task=tone").json()["changes"]]
    assert actions[-3:] == ["set-gate", "delete-gate", "promote"]


def test_a_key_that_may_only_move_aliases_runs_the_gate_and_sees_its_own_tasks_alone(tmp_path):
    rules = {"must": [{"text": TEXTS[0], "label": Task(seed=9).label(TEXTS[0])}]}
    with tenants_runtime(tmp_path) as runtime:
        asker = Asker(runtime)

        def of(key, method, task="acme-tone", path="gate", **more):
            return asyncio.run(asker.ask(key, method, f"/v1/tasks/{task}/{path}", **more))

        assert of("key-to-promote", "PUT", json={"rules": rules}).status_code == 200
        assert of("key-to-classify", "GET").status_code == 403
        foreign = [of("key-of-blue", "GET", task=task).json()["detail"] for task in ("acme-tone", "blue-lost")]
        assert foreign[0].replace("acme-tone", "…") == foreign[1].replace("blue-lost", "…")
        assert of("key-of-blue", "PUT", json={"rules": rules}).status_code == 404
        at = {"If-Match": '"1"'}
        moved = of("key-to-promote", "PUT", path="aliases/live", headers=at, json={"version": 2})
        assert moved.status_code == 200, moved.text
