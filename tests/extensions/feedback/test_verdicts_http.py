"""Verdicts over feedback on a replica: wins, losses and e-values by kind; the alias stays where people put it."""

import itertools

import pytest

from onebert_server.cli.status.tables import attention
from onebert_server.client.exchange import decode
from onebert_server.contract.status import StatusResponse
from onebert_store.comparison import e_value
from runtimes import ask, get, move, opened
from servers import Task, store

LIVE = "/v1/tasks/tone/aliases/live"
# The third version answers as the first.
TASKS = [Task(seed=1), Task(seed=2), Task(seed=1, method="twin")]
WORDS = "late broken parcel good screen bad refund great invoice password order thanks".split()
TEXTS = [" ".join(words) for words in itertools.combinations(WORDS, 2)]
SHADOWED = {"version": 1, "shadow": [{"version": 2, "percent": 100}]}


@pytest.fixture
def runtime(tmp_path):
    store(tmp_path, tone=TASKS)
    with opened(tmp_path) as runtime:
        yield runtime


def answers(runtime, version):
    results = []
    for start in range(0, len(TEXTS), 64):
        body = {"inputs": TEXTS[start : start + 64]}
        results += ask(runtime, "POST", f"/v1/tasks/tone@{version}/classify", json=body).json()["results"]
    return [result["label"] for result in results]


def pairs(runtime, winner, loser):
    """Texts with feedback that only `winner` answers rightly; more of them than any verdict here needs."""
    both = zip(TEXTS, answers(runtime, winner), answers(runtime, loser), strict=True)
    rows = [
        {"task": "tone", "text": text, "label": right, "identifier": text}
        for text, right, wrong in both
        if right != wrong
    ]
    assert len(rows) >= 20
    return rows


def give(runtime, rows, **fields):
    body = {"data": [row | fields for row in rows]}
    assert ask(runtime, "POST", "/v1/feedback", json=body).status_code == 200


def verdicts(runtime):
    return get(runtime, f"{LIVE}/verdicts").json()


def test_a_shadow_that_wins_the_pairs_is_proven_better_and_the_alias_stays(runtime):
    tag = move(runtime, SHADOWED)["target"]["tag"]
    won = pairs(runtime, 2, 1)
    needed = next(count for count in range(1, 30) if e_value(count, 0) >= 20)
    assert needed == 10
    give(runtime, won[: needed - 1])
    before = verdicts(runtime)
    assert (before["version"], before["level"]) == (1, 0.05)
    [candidate] = before["verdicts"]
    assert (candidate["version"], candidate["wins"], candidate["losses"]) == (2, needed - 1, 0)
    assert candidate["better"] == pytest.approx(float(e_value(needed - 1, 0)))
    assert candidate["verdict"] == "not_yet"
    give(runtime, won[needed - 1 : needed])
    assert [candidate["verdict"] for candidate in verdicts(runtime)["verdicts"]] == ["promote"]
    live = get(runtime, LIVE).json()
    assert (live["version"], live["target"]["tag"]) == (1, tag)


def test_each_of_several_candidates_is_judged_at_its_share_of_the_level(runtime):
    move(runtime, {"split": {"1": 90, "2": 10}, "shadow": [{"version": 3, "percent": 100}]})
    lost = pairs(runtime, 1, 2)
    needed = next(count for count in range(1, 30) if e_value(count, 0) >= 40)
    give(runtime, lost[: needed - 1])
    assert {facts["version"]: facts["verdict"] for facts in verdicts(runtime)["verdicts"]} == {
        2: "not_yet",
        3: "not_yet",
    }
    give(runtime, lost[needed - 1 : needed])
    second, third = sorted(verdicts(runtime)["verdicts"], key=lambda candidate: candidate["version"])
    assert (second["losses"], second["verdict"]) == (needed, "roll_back")
    assert (third["alike"], third["verdict"]) == (needed, "not_yet")


def status(runtime):
    return get(runtime, "/v1/tasks/tone/status").json()


def test_the_status_advises_a_move_only_by_a_verdict(runtime):
    assert status(runtime)["next"] == "onebert rollout tone --shadow 3"
    move(runtime, SHADOWED)
    assert (status(runtime)["next"], status(runtime)["candidates"][0]["verdict"]) == (None, "not_yet")
    give(runtime, pairs(runtime, 2, 1)[:10])
    assert status(runtime)["next"] == "onebert promote tone 2"


@pytest.mark.parametrize(
    ("target", "ends"),
    [
        ({"version": 1, "shadow": [{"version": 2, "percent": 100}]}, "--shadow none"),
        ({"version": 1, "shadow": [{"version": 2}, {"version": 3, "percent": 50}]}, "--shadow 3=50"),
        ({"split": {"1": 90, "2": 10}}, "--split none"),
        ({"split": {"1": 60, "2": 20, "3": 20}}, "--split 1=80,3=20"),
    ],
)
def test_a_candidate_that_is_proven_worse_is_to_be_ended_and_is_seen_in_the_list(runtime, target, ends):
    move(runtime, target)
    give(runtime, pairs(runtime, 1, 2)[:20])
    answer = ask(runtime, "GET", "/v1/status")
    [listed] = answer.json()["tasks"]
    assert "version 2 is worse" in attention(*decode(answer, StatusResponse).tasks)
    assert listed["candidates"] == status(runtime)["candidates"] == verdicts(runtime)["verdicts"]
    assert listed["candidates"][0]["verdict"] == "roll_back"
    assert status(runtime)["next"] == f"onebert rollout tone {ends}"


def test_corrections_and_reviews_count_in_no_verdict(runtime):
    move(runtime, SHADOWED)
    won = pairs(runtime, 2, 1)[:20]
    give(runtime, won, kind="correction")
    give(runtime, won, kind="review")
    [candidate] = verdicts(runtime)["verdicts"]
    assert (candidate["wins"], candidate["losses"], candidate["alike"], candidate["better"]) == (0, 0, 0, 1.0)
    give(runtime, won)
    assert [candidate["verdict"] for candidate in verdicts(runtime)["verdicts"]] == ["promote"]
