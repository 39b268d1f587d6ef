"""`--committee`: the deltas of a few-row task's folds are files of their own, each what its fold alone would give."""

import numpy as np
import pytest

from onebert_store.file.delta import Delta, check
from onebert_store.file.format import load, save
from onebert_training.cli import train
from trainings import invoke, write_tone

pytestmark = pytest.mark.nightly("trainings")


@pytest.fixture
def few(tmp_path):
    return write_tone(tmp_path / "data") / "train.csv"


def trained(few, out, *options):
    fixed = ("--max-length", 16, "--epochs", 4, "--start", "fresh", "--method", "layernorm")
    return invoke(train, "--task", "tone", "--data", few, "--out", out, *fixed, *options)


def test_the_folds_of_few_rows_are_written_beside_the_file(base, few, tmp_path):
    assert trained(few, tmp_path / "plain.safetensors").exit_code == 0
    assert [*tmp_path.glob("plain-*")] == []
    plain = load(tmp_path / "plain.safetensors")
    # A fold of an earlier training goes; files that no training has kept as folds stay.
    sixth = plain.manifest.model_copy(update={"training": {"fold": 6}})
    save(tmp_path / "tone-committee-6.safetensors", Delta(sixth, plain.tensors))
    save(tmp_path / "tone-committee-mine.safetensors", plain)
    (tmp_path / "tone-committee-notes.safetensors").write_text("no delta")
    done = trained(few, tmp_path / "tone.safetensors", "--committee")
    assert done.exit_code == 0, done.output
    assert "onebert push tone.safetensors tone-committee-*.safetensors --committee" in done.output
    for kept in ("mine", "notes"):
        (tmp_path / f"tone-committee-{kept}.safetensors").unlink()
    files = sorted(tmp_path.glob("tone-committee-*.safetensors"))
    assert [file.name for file in files] == [f"tone-committee-{number}.safetensors" for number in range(1, 6)]
    whole, members = load(tmp_path / "tone.safetensors"), [load(file) for file in files]
    for member in members:
        check(member, base.spec)
        assert member.manifest.labels == whole.manifest.labels
        assert member.manifest.golden
        assert member.tensors.keys() == whole.tensors.keys()
    assert [member.manifest.training["fold"] for member in members] == [1, 2, 3, 4, 5]
    assert "fold" not in whole.manifest.training
    weights = [member.tensors["head.weight"] for member in members]
    assert all(np.abs(one - weights[0]).max() > 0 for one in weights[1:]), "each saw other rows"
    assert plain.tensors.keys() == whole.tensors.keys()


@pytest.mark.parametrize("options", [("--validation-share", "0.25"), ("--method", "head")])
def test_a_training_without_folds_has_no_committee(few, tmp_path, options):
    ended = invoke(train, "--task", "tone", "--data", few, "--committee", "--out", tmp_path / "x", *options)
    assert ended.exit_code == 1
    assert "which only few rows and a trained delta have" in str(ended.exception or ended.output)
    assert [*tmp_path.glob("x*")] == []
