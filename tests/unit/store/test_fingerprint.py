"""The fingerprint of a training: it knows every text, takes hardly any other one for known, and stays small."""

import pytest

from onebert_store.file.fingerprint import MOST_TEXTS, fingerprint_of, overlap_of
from onebert_store.file.manifest import parse_manifest
from tiny_delta import manifest_dict

DIGEST = f"sha256:{64 * '0'}"


def manifest(fingerprint, digest=DIGEST):
    base = {"name": "base", "model_type": "bert", "digest": digest}
    return parse_manifest(manifest_dict(base=base, training={"fingerprint": fingerprint}))


@pytest.mark.parametrize("rows", [0, 1, 85, 3000])
def test_every_text_is_known_and_hardly_another(rows):
    texts, others = ([f"{kind} {i}" for i in range(count)] for kind, count in (("text", rows), ("other", 20_000)))
    made = manifest(fingerprint_of([*texts, *texts], DIGEST))
    assert overlap_of(made, texts).known == [True] * rows
    assert overlap_of(made, others).rows <= 3  # a thousandth of a percent, with room for chance


def test_of_many_texts_a_share_is_kept_and_the_overlap_is_estimated():
    texts = [f"text {i}" for i in range(3 * MOST_TEXTS)]
    fingerprint = fingerprint_of(texts, DIGEST)
    assert len(fingerprint["bits"]) < 70_000
    overlap = overlap_of(manifest(fingerprint), texts[:9000])
    assert 8000 <= overlap.rows <= 9000
    assert sum(overlap.known) < 4000
    assert overlap_of(manifest(fingerprint), [f"other {i}" for i in range(9000)]).rows <= 9


def test_a_pair_is_known_by_both_texts_together():
    made = manifest(fingerprint_of([("a premise", "a hypothesis")], DIGEST))
    pairs = [("a premise", "a hypothesis"), ["a premise", "a hypothesis"], ("a premise", "another"), "a premise"]
    assert overlap_of(made, pairs).known == [True, True, False, False]


def test_another_base_has_another_fingerprint_of_the_same_texts():
    fingerprint = fingerprint_of(["a text"], DIGEST)
    assert fingerprint != fingerprint_of(["a text"], f"sha256:{64 * '1'}")
    assert overlap_of(manifest(fingerprint, f"sha256:{64 * '1'}"), ["a text"]).rows == 0


@pytest.mark.parametrize(
    "damaged", [None, 3, {}, {"bits": "?"}, {"bits": "é"}, {"bits": ""}, {"bits": "AAAA", "one_of": 0}]
)
def test_a_fingerprint_of_another_form_knows_nothing(damaged):
    assert overlap_of(manifest(damaged), ["a text"]) == ([False], 0)
