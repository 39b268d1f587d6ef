"""A store that revision 82b92e21 wrote, whose tasks use features that are gone since: it opens, and answers as then.

`tests/old_store.tar.xz` has the store, its base, the answers of that revision, and `write.py`, which wrote all three.

- `tone`: two versions with a twin each; `committee` is a split of three; `canary` is version 5, a blend that the server
  made. `live` is version 1 with the shadow 2 and a level in `decide`: the gate, with rows on the server, refused its
  verdict for version 2. Answers are kept, with a review.
- `mood`: a verdict has moved `live` to version 2. A client keeps the rows of the gate.
- `few`: version 1 trained with `auto`; `committee` means the folds of version 2.
"""

import json
import tarfile
from pathlib import Path

import pytest

from runtimes import ask, get, opened

ARCHIVE = Path(__file__).parents[2] / "old_store.tar.xz"
TONE = "/v1/tasks/tone/aliases"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    unpacked = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(unpacked, filter="data")
    # The reference of all texts, which no longer are watched.
    (unpacked / "data" / "inputs-0123456789ab-float32-16-20261127.npz").write_bytes(b"sums")
    return unpacked


@pytest.fixture(scope="module")
def runtime(folder):
    with opened(folder / "data", base=(str(folder / "base"),)) as runtime:
        yield runtime


def classified(runtime, reference, texts):
    return ask(runtime, "POST", f"/v1/tasks/{reference}/classify", json={"inputs": texts}).json()


@pytest.mark.parametrize("reference", ["tone@1", "tone@2", "tone@canary", "tone@5", "mood", "few", "few@3"])
def test_versions_answer_as_then(runtime, folder, reference):
    expected = json.loads((folder / "answers.json").read_text())
    results = classified(runtime, reference, expected["texts"])["results"]
    scores = expected["scores"][reference.replace("@5", "@canary")]
    assert [result["scores"] for result in results] == [pytest.approx(row, abs=1e-4) for row in scores]


def test_aliases_keep_their_targets(runtime):
    places = {
        path: get(runtime, f"/v1/tasks/{path}").json()
        for path in ("tone/aliases/live", "tone/aliases/committee", "mood/aliases/live", "few/aliases/committee")
    }
    live = places["tone/aliases/live"]
    assert live["version"] == 1
    assert (live["target"]["split"], live["target"]["shadow"]) == ({"1": 100}, [{"version": 2, "percent": 100}])
    assert places["tone/aliases/committee"]["target"]["split"] == {"1": 34, "2": 33, "3": 33}
    assert places["few/aliases/committee"]["target"]["split"] == dict.fromkeys("34567", 20)
    moved = places["mood/aliases/live"]
    assert (moved["version"], moved["target"], moved["previous"]) == (2, None, 1)
    # Going back from version 2 ends its share of the work, also that as a shadow.
    assert moved["previous_target"] is None


@pytest.mark.parametrize(("task", "members"), [("tone", {1, 2, 3}), ("few", {3, 4, 5, 6, 7})])
def test_an_alias_named_committee_answers_with_one_of_its_versions(runtime, task, members):
    assert classified(runtime, f"{task}@committee", "late parcel")["version"] in members


def test_an_alias_that_decided_moves_and_goes_back(folder, tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with opened(tmp_path / "data", base=(str(folder / "base"),)) as runtime:
        tag = get(runtime, f"{TONE}/live").headers["ETag"]
        body = {"version": 2, "force": True, "message": "proven"}
        moved = ask(runtime, "PUT", f"{TONE}/live", json=body, headers={"If-Match": tag})
        assert moved.status_code == 200, moved.text
        assert (moved.json()["previous"], moved.json()["previous_target"]) == (1, None)
        back = {"version": 1, "shadow": [{"version": 2, "percent": 100}]}
        moved = ask(runtime, "PUT", f"{TONE}/live", json=back, headers={"If-Match": moved.headers["ETag"]})
        assert (moved.status_code, moved.json()["version"]) == (200, 1)
        assert classified(runtime, "tone", "late parcel")["version"] == 1
