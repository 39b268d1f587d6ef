"""Blends on a replica: the version that a slider makes, its answers between two ends, and how an alias takes it."""

from dataclasses import replace

import pytest

from onebert_server.access.principal import Principal
from onebert_server.versions import blending
from onebert_store.errors import Forbidden, VersionUnavailable
from onebert_store.file.format import loads
from onebert_store.registry.grants import Scope
from runtimes import WORK, ask, get, move, opened, upload
from servers import Task, assert_answers, store

LIVE = "/v1/tasks/tone/aliases/live"
TEXT = "the screen was broken"
TASKS = [Task(seed=seed) for seed in (1, 2, 3)]


@pytest.fixture
def runtime(tmp_path):
    with opened(tmp_path) as made:
        for task in TASKS:
            upload(made, "tone", task)
        yield made


def answer(runtime, ref="tone"):
    return ask(runtime, "POST", f"/v1/tasks/{ref}/classify", json={"inputs": TEXT}).json()


def twin(weights):
    """The scores of the plain model with the mean parameters: a bias task's are linear in its tensors."""
    tensors = {name: sum(w * task.tensors[name] for task, w in weights.items()) for name in TASKS[0].tensors}
    task = Task()
    task.tensors = tensors
    return task.scores(TEXT)


def test_answers_move_with_the_weight_from_one_version_to_the_other(runtime):
    ends = [answer(runtime, f"tone@{number}")["results"][0]["scores"] for number in (1, 2)]
    assert max(abs(ends[0][label] - ends[1][label]) for label in ends[0]) > 0.1
    at, weights = "1", [1e-6, 0.25, 0.5, 0.75, 1 - 1e-6]
    for number, weight in enumerate(weights, 4):
        moved = move(runtime, {"blend": {"1": 1 - weight, "2": weight}}, at)
        found = answer(runtime)
        assert found["version"] == moved["version"] == number
        assert_answers(found["results"][0], twin({TASKS[0]: 1 - weight, TASKS[1]: weight}))
        at = str(number)
    for version, end in ((4, ends[0]), (8, ends[1])):
        assert_answers(answer(runtime, f"tone@{version}")["results"][0], end)


def test_a_blend_is_a_version_with_provenance_and_golden_logits_that_is_made_once(runtime):
    body = {"blend": {"2": 0.2, "1": 0.5, "3": 0.3}}
    first = move(runtime, body)
    assert (first["version"], first["previous"], first["target"]) == (4, 1, None)
    listed = get(runtime, "/v1/tasks/tone").json()["versions"]
    manifest = get(runtime, "/v1/tasks/tone/versions/4").json()["manifest"]
    digests = {one["version"]: one["digest"] for one in listed}
    parts = [{"version": n, "digest": digests[n], "weight": w} for n, w in ((1, 0.5), (2, 0.2), (3, 0.3))]
    assert (manifest["method"], manifest["training"]) == ("blend", {"task": "tone", "blend": parts})
    # Computed in float32 by this server's base, as a trainer would.
    kept = loads(runtime.registry.read(runtime.directory.version("tone", 4).entry))
    assert len(kept.manifest.golden.logits) == 3
    assert move(runtime, {"version": 2}, "4")["previous"] == 4, "the alias goes back as from any version"
    assert move(runtime, body, "2")["version"] == 4, "the same blend is the same version"
    assert len(get(runtime, "/v1/tasks/tone").json()["versions"]) == 4


def test_a_blend_may_be_shadowed_and_starts_from_any_alias(runtime):
    moved = ask(
        runtime,
        "PUT",
        "/v1/tasks/tone/aliases/canary",
        json={"blend": {"1": 0.5, "2": 0.5}, "shadow": [{"version": 3, "percent": 100}]},
        headers={"If-None-Match": "*"},
    ).json()
    assert moved["target"]["split"] == {"4": 100}
    assert moved["target"]["shadow"] == [{"version": 3, "percent": 100}]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"blend": {"1": 1.0}}, 422),
        ({"blend": {"1": 0.5, "2": 0.4}}, 422),
        ({"blend": {"1": 1.5, "2": -0.5}}, 422),
        ({"blend": {"1": "0.5", "2": 0.5}}, 422),
        ({"blend": {"x": 0.5, "2": 0.5}}, 422),
        ({"blend": {str(n): 1 / 17 for n in range(1, 18)}}, 422),
        ({"blend": {"1": 0.5, "2": 0.5}, "version": 1}, 422),
        ({"blend": {"1": 0.5, "2": 0.5}, "sticky": "principal"}, 422),
        ({"blend": {"1": 0.5, "9": 0.5}}, 404),
        ({"blend": {"1": 0.5, "4": 0.5}}, 422),
    ],
)
def test_a_bad_blend_is_refused_and_nothing_moves(runtime, body, status):
    upload(runtime, "tone", Task(labels=2))
    move(runtime, body, status=status)
    assert get(runtime, LIVE).json()["version"] == 1
    assert len(get(runtime, "/v1/tasks/tone").json()["versions"]) == 4, "no blend is made for a refused move"


def test_a_blend_of_too_many_bytes_is_refused_before_any_is_read(runtime, monkeypatch):
    sizes = [runtime.directory.version("tone", number).entry.size for number in (1, 2, 3)]
    monkeypatch.setattr(blending, "MAX_BLENDED_BYTES", sum(sizes) - 1)
    monkeypatch.setattr(runtime.catalog, "read_delta", lambda version: pytest.fail("read"))
    move(runtime, {"blend": {"1": 0.4, "2": 0.3, "3": 0.3}}, status=422)


def test_a_blend_over_the_bound_of_uploads_is_not_stored(tmp_path):
    with opened(tmp_path, max_upload_bytes=1024) as runtime:
        for task in TASKS:
            upload(runtime, "tone", task)
        refused = move(runtime, {"blend": {"1": 0.5, "2": 0.5}}, status=413)
        assert "an upload at most 1024" in refused["detail"]
        assert len(get(runtime, "/v1/tasks/tone").json()["versions"]) == 3


def test_a_stale_condition_makes_and_moves_nothing_and_a_gate_judges_the_blend(runtime):
    move(runtime, {"blend": {"1": 0.5, "2": 0.5}}, "3", status=412)
    assert get(runtime, LIVE).json()["version"] == 1
    assert len(get(runtime, "/v1/tasks/tone").json()["versions"]) == 3
    wrong = next(label for label in TASKS[0].manifest["labels"] if label != answer(runtime)["results"][0]["label"])
    rules = {"must": [{"text": TEXT, "label": wrong}]}
    assert ask(runtime, "PUT", "/v1/tasks/tone/gate", json={"rules": rules}).status_code == 200
    refused = move(runtime, {"blend": {"1": 0.9, "3": 0.1}}, status=409)
    assert (refused["code"], refused["report"]["candidate"]["version"]) == ("gate-failed", 4)


@pytest.mark.parametrize("scopes", [{Scope.UPLOAD}, {Scope.PROMOTE}])
def test_a_blend_takes_the_rights_to_upload_and_to_promote(runtime, scopes):
    only = replace(WORK, principal=Principal("ci", frozenset(scopes), ("*",)))
    with pytest.raises(Forbidden):
        runtime.blending.upload("tone", {1: 0.5, 2: 0.5}, only)
    assert len(get(runtime, "/v1/tasks/tone").json()["versions"]) == 3


def test_a_part_whose_golden_logits_are_not_computed_here_has_no_blend(tmp_path):
    store(tmp_path, tone=[TASKS[0].with_golden(), Task(seed=2).with_golden(shift=1.0)])
    with opened(tmp_path) as runtime:
        for _ in ("not loaded yet", "tried and unavailable"):
            with pytest.raises(VersionUnavailable, match="version 2 cannot be a part"):
                runtime.blending.upload("tone", {1: 0.5, 2: 0.5}, WORK)
            assert ask(runtime, "POST", "/v1/tasks/tone@2/classify", json={"inputs": TEXT}).status_code == 503
        assert len(get(runtime, "/v1/tasks/tone").json()["versions"]) == 2
