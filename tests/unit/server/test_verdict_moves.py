"""Verdicts over feedback on a replica: they count by kind, and move `live` once, by the owner's rule."""

import asyncio
import itertools

import pytest

from onebert_server.gate.verdicts import e_value
from onebert_store.registry.target import Target
from runtimes import ask, client, get, opened
from servers import Task, store

LIVE = "/v1/tasks/tone/aliases/live"
# The third version answers as the first, the fourth as the second.
TASKS = [Task(seed=1), Task(seed=2), Task(seed=1, method="twin"), Task(seed=2, method="twin")]
WORDS = [
    "late",
    "broken",
    "parcel",
    "good",
    "screen",
    "bad",
    "refund",
    "great",
    "invoice",
    "password",
    "order",
    "thanks",
]
TEXTS = [" ".join(words) for words in itertools.combinations(WORDS, 2)]
RULE = {"version": 1, "shadow": [{"version": 2, "percent": 100}], "decide": 0.05}


@pytest.fixture
def runtime(tmp_path):
    store(tmp_path, tone=TASKS)
    with opened(tmp_path) as made:
        yield made


def move(runtime, body, tag="1", status=200):
    moved = ask(runtime, "PUT", LIVE, json=body, headers={"If-Match": f'"{tag}"'})
    assert moved.status_code == status, moved.text
    return moved.json()


def answers(runtime, version):
    found = []
    for start in range(0, len(TEXTS), 64):
        body = {"inputs": TEXTS[start : start + 64]}
        found += ask(runtime, "POST", f"/v1/tasks/tone@{version}/classify", json=body).json()["results"]
    return [one["label"] for one in found]


def pairs(runtime, winner, loser):
    """Texts with feedback that only `winner` answers rightly; more of them than any verdict here needs."""
    both = zip(TEXTS, answers(runtime, winner), answers(runtime, loser), strict=True)
    found = [
        {"task": "tone", "text": text, "label": right, "identifier": text}
        for text, right, wrong in both
        if right != wrong
    ]
    assert len(found) >= 20
    return found


def give(runtime, items, **more):
    """Gives feedback, and returns when the work behind it is done."""
    assert set(gathered(runtime, [[one | more for one in items]])) == {200}


def gathered(runtime, parts):
    async def posted():
        async with client(runtime) as web:
            posts = [web.post("/v1/feedback", json={"data": part}) for part in parts]
            found = [answer.status_code for answer in await asyncio.gather(*posts)]
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
            return found

    return asyncio.run(posted())


def verdicts(runtime):
    return get(runtime, f"{LIVE}/verdicts").json()


def moves(runtime):
    changes = get(runtime, "/v1/audit?task=tone").json()["changes"]
    return [one for one in changes if one["action"] == "promote"]


def test_a_shadow_that_wins_the_pairs_is_promoted_by_the_rule_when_it_is_proven(runtime):
    move(runtime, RULE)
    won = pairs(runtime, 2, 1)
    needed = next(count for count in range(1, 30) if e_value(count, 0) >= 20)
    assert needed == 10
    give(runtime, won[: needed - 1])
    before = verdicts(runtime)
    assert (before["version"], before["level"], before["decides"]) == (1, 0.05, True)
    [one] = before["verdicts"]
    assert (one["version"], one["wins"], one["losses"], one["verdict"]) == (2, needed - 1, 0, "not_yet")
    assert one["better"] == pytest.approx(float(e_value(needed - 1, 0)))
    assert get(runtime, LIVE).json()["version"] == 1
    give(runtime, won[needed - 1 : needed])
    place = get(runtime, LIVE).json()
    assert (place["version"], place["target"], place["previous"]) == (2, None, 1)
    last = moves(runtime)[-1]
    assert last["principal"] == "(server)"
    assert last["request"] == f"verdict on version 2: e-value {float(e_value(needed, 0)):.4g}, {needed} wins, 0 losses"
    # Back to the meaning before as a whole, its rule included.
    back = {name: value for name, value in place["previous_target"].items() if name != "tag"}
    assert move(runtime, back, "2")["target"]["decide"] == 0.05
    # Somebody has taken the move back: more feedback does not repeat it.
    give(runtime, won[needed : needed + 2])
    assert get(runtime, LIVE).json()["version"] == 1
    assert verdicts(runtime)["verdicts"][0]["verdict"] == "promote"


def test_a_candidate_that_is_proven_worse_leaves_and_the_others_stay(runtime):
    split = {"split": {"1": 90, "2": 10}, "sticky": "principal", "shadow": [{"version": 3, "percent": 100}]}
    move(runtime, split | {"decide": 0.05})
    give(runtime, pairs(runtime, 1, 2)[:12])
    target = get(runtime, LIVE).json()["target"]
    assert (target["split"], target["shadow"], target["decide"]) == ({"1": 100}, [{"version": 3, "percent": 100}], 0.05)
    assert "sticky" not in {name for name, value in target.items() if value is not None}
    judged = {one["version"]: one["verdict"] for one in verdicts(runtime)["verdicts"]}
    assert judged == {3: "not_yet"}
    assert (verdicts(runtime)["verdicts"][0]["alike"], verdicts(runtime)["level"]) == (12, 0.05)


def test_a_second_bad_candidate_leaves_too_and_one_that_is_put_back_stays(runtime):
    lost = pairs(runtime, 1, 2)
    # The last time somebody has put the fourth version back.
    for candidate, given, stays in ((2, lost[:10], False), (4, lost[10:20], False), (4, lost[20:22], True)):
        move(runtime, RULE | {"shadow": [{"version": candidate, "percent": 100}]})
        give(runtime, given)
        assert (get(runtime, LIVE).json()["target"] is not None) is stays


def test_corrections_and_reviews_count_in_no_verdict_and_without_a_rule_people_decide(runtime):
    move(runtime, RULE | {"decide": None})
    won = pairs(runtime, 2, 1)[:20]
    give(runtime, won, kind="correction")
    give(runtime, won, kind="review")
    [one] = verdicts(runtime)["verdicts"]
    assert (one["wins"], one["losses"], one["alike"], one["better"]) == (0, 0, 0, 1.0)
    give(runtime, won)
    assert [one["verdict"] for one in verdicts(runtime)["verdicts"]] == ["promote"]
    assert get(runtime, LIVE).json()["version"] == 1
    assert verdicts(runtime)["decides"] is False


@pytest.mark.promise("verdict-level")
def test_two_feedbacks_that_both_complete_a_verdict_move_once(runtime):
    move(runtime, RULE)
    won = pairs(runtime, 2, 1)
    give(runtime, won[:9])
    assert gathered(runtime, [[one] for one in won[9:13]]) == [200] * 4
    assert get(runtime, LIVE).json()["version"] == 2
    assert len(moves(runtime)) == 2, "the rule, and one move by it"


def test_a_gate_holds_a_verdict_back_also_after_a_restart_and_the_feedback_is_recorded(tmp_path):
    store(tmp_path, tone=TASKS)
    with opened(tmp_path) as runtime:
        won = held_back(runtime)
        # The gate is not run at every feedback: the next one moves nothing either, until somebody touches the alias.
        assert ask(runtime, "DELETE", "/v1/tasks/tone/gate").status_code == 204
        give(runtime, won[12:13])
        assert len(moves(runtime)) == 1
    with opened(tmp_path) as runtime:
        give(runtime, won[13:14])
        assert len(moves(runtime)) == 1
        tag = get(runtime, LIVE).headers["ETag"].strip('"')
        move(runtime, RULE | {"shadow": [{"version": 4, "percent": 100}]}, tag)
        give(runtime, [one | {"identifier": f"again {one['text']}"} for one in pairs(runtime, 4, 1)[:12]])
        assert get(runtime, LIVE).json()["version"] == 4


def held_back(runtime):
    """Feedback completes a verdict that the task's gate refuses."""
    given = {answers(runtime, version)[0] for version in (1, 2)}
    wrong = next(name for name in TASKS[0].manifest["labels"] if name not in given)
    rules = {"must": [{"text": TEXTS[0], "label": wrong}]}
    assert ask(runtime, "PUT", "/v1/tasks/tone/gate", json={"rules": rules}).status_code == 200
    move(runtime, RULE)
    won = pairs(runtime, 2, 1)
    give(runtime, won[:12])
    assert get(runtime, LIVE).json()["version"] == 1
    assert verdicts(runtime)["verdicts"][0]["verdict"] == "promote"
    return won


@pytest.mark.parametrize(
    "body",
    [
        {"version": 1, "decide": 0.05},
        RULE | {"decide": 0},
        RULE | {"decide": 0.6},
        RULE | {"decide": "0.05"},
    ],
)
def test_a_rule_that_means_nothing_is_refused(runtime, body):
    move(runtime, body, status=422)
    new = ask(runtime, "PUT", "/v1/tasks/tone/aliases/next", json=RULE, headers={"If-None-Match": "*"})
    assert (new.status_code, "decide is for live" in new.text) == (422, True)


def test_meanings_without_a_rule_keep_their_text_and_tag():
    old = Target(((1, 90), (2, 10)), "principal")
    assert old.dumps() == '[[[1,90],[2,10]],"principal",[]]'
    assert Target.loads(old.dumps()) == old
    ruled = old._replace(decide=0.05)
    assert Target.loads(ruled.dumps()) == ruled
    assert ruled.tag != old.tag
