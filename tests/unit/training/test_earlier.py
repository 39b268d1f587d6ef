"""Settings on cards: every one is recorded and read back, and a manifest that cannot be repeated is refused."""

from dataclasses import fields, replace

import pytest

from bases import manifest_for, tiny_base
from onebert_encoder.base.base import load_base
from onebert_store.errors import InvalidInput
from onebert_store.file.manifest import parse_manifest
from onebert_training.data.options import DataOptions
from onebert_training.earlier import earlier_training, repeatable, settings_from
from onebert_training.fit.settings import Settings
from trainings import CHANGED, READING

# What describes one file alone, and what every manifest has.
OF_ONE_FILE = {"more": None, "encoding": None, "sheet": None, "task_type": None}


def test_every_setting_is_recorded_and_read_back():
    for group in (CHANGED, READING):
        unchanged = type(group)()
        same = [field.name for field in fields(group) if getattr(group, field.name) == getattr(unchanged, field.name)]
        assert same == [], "give these settings another value than their default above"
    options = repeatable(CHANGED, READING).options
    assert (
        options.keys() == {field.name for group in (CHANGED, READING) for field in fields(group)} - OF_ONE_FILE.keys()
    )
    assert settings_from(options) == (CHANGED, replace(READING, **OF_ONE_FILE))
    for method in ("bitfit", "head"):
        options = repeatable(Settings(method=method), DataOptions()).options
        assert settings_from(options) == (Settings(method=method), DataOptions())
        assert ("batch_size" in options) == (method == "bitfit"), "an exact head takes no step"


@pytest.fixture(scope="module")
def manifest():
    """Makes a manifest with the given facts on its training."""
    spec = load_base(str(tiny_base("bert"))).spec

    def make(**training):
        return parse_manifest(manifest_for(spec, training=training) | {"labels": ["complaint", "praise"]})

    return make


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({}, "tone@3 records no settings to repeat: it was imported, blended, or trained by an earlier OneBERT"),
        ({"settings": "bitfit"}, "tone@3 records no settings to repeat"),
        ({"settings": {"epochs": 0}}, "the settings of tone@3 cannot be repeated: epochs: must be at least 1"),
        ({"settings": {"seed": True}}, "the settings of tone@3 cannot be repeated: seed: must be a whole number"),
        ({"settings": {"later": 1}}, "the settings of tone@3 cannot be repeated: later"),
    ],
)
def test_a_manifest_without_settings_or_with_others_is_refused_in_one_line(manifest, training, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        earlier_training("tone@3", manifest(**training))
    assert "\n" not in caught.value.detail


def test_named_options_replace_the_recorded_ones_and_must_combine_with_them(manifest):
    earlier = earlier_training("tone@3", manifest(card=repeatable(CHANGED, READING).dump()))
    settings, reading = earlier.overridden(Settings(seed=9), DataOptions(label="answer"), {"seed", "label", "dtype"})
    assert settings == replace(CHANGED, seed=9)
    assert reading == replace(READING, **OF_ONE_FILE | {"label": "answer", "task_type": "single_label"})
