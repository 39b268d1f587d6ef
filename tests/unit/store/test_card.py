"""The card of a version: of today's files, and of earlier ones, which have its parts under other keys."""

import pytest

from onebert_store.file.card import Card, card_of
from onebert_store.file.manifest import parse_manifest
from tiny_delta import manifest_dict

DECISION = {"thresholds": {"b": 0.8}, "positives": ["b"], "abstain": {"below": 0.6}}
CALIBRATION = {"thresholds": {"target": "precision=0.9", "all": {}}, "abstain": {"target": "coverage=0.7"}}


def manifest(format_, training, **more):
    return parse_manifest(manifest_dict(format=format_, labels=["a", "b"], training=training, **more))


@pytest.mark.parametrize(
    ("format_", "training", "more", "expected"),
    [
        (1, {}, {}, {}),
        (
            1,
            {"settings": {"text": "body", "encoding": "cp1251", "sheet": "rows", "seed": 3}},
            {},
            {"read": {"text": "body"}, "train": {"seed": 3}},
        ),
        (2, {"settings": {}}, {"decision": DECISION}, {"train": {}}),
        (
            2,
            {"settings": {"seed": 3}, "calibration": {**CALIBRATION, "stated": {"positives": ["b"]}}},
            {"decision": DECISION},
            {
                "train": {"seed": 3, "positive": "b"},
                "decide": {"targets": ["precision=0.9", "coverage=0.7"]},
            },
        ),
        (
            3,
            {"calibration": {"abstain": {"target": "coverage=0.7"}}},
            {"decision": DECISION, "head": {"activation": "gelu"}},
            {"decide": {"targets": ["coverage=0.7"]}},
        ),
        (1, {"card": {"train": {"seed": 3}}, "settings": {"seed": 4}}, {}, {"train": {"seed": 3}}),
        # A manifest may hold anything.
        (1, {"card": 3}, {}, {}),
        (1, {"card": {"later": 3}}, {}, {}),
        (1, {"settings": [], "calibration": {"thresholds": {"target": 3}}}, {}, {}),
        (1, {"settings": {}, "calibration": {"stated": {"positives": 3}}}, {}, {}),
    ],
)
def test_files_of_every_format_have_a_card(format_, training, more, expected):
    card = card_of(manifest(format_, training, **more))
    assert card == Card.model_validate(expected)
    assert Card.model_validate(card.dump()) == card
