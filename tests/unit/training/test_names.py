"""A classifier of label names alone, beside the cosines of plain Hugging Face vectors."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from bases import loaded, tiny_base
from onebert_store.errors import InvalidManifest
from onebert_store.file.format import dumps, loads
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.names import SHARPNESS, delta_of_names, words_of

LABELS = ["good", "bad_day", "GetWeather"]
TEXTS = ["a good day", "the weather was bad", "bad"]


def test_logits_are_cosines_with_the_names_words():
    base, model = loaded(), AutoModel.from_pretrained(tiny_base()).eval()

    def vectors(texts):
        tokens = base.tokenizer.reading("mean").encode(texts, base.spec.max_length)
        with torch.no_grad():
            outputs = [model(torch.tensor([token.input_ids])).last_hidden_state[0].mean(dim=0) for token in tokens]
        return torch.stack(outputs).numpy()

    names, texts = vectors(["good", "bad day", "Get Weather"]), vectors(TEXTS)
    lengths = np.linalg.norm(names, axis=1)
    unit = names / lengths[:, None]
    delta = loads(dumps(delta_of_names(base, LABELS)))
    logits = np.array(predict_delta(base, delta, tokenize(base, delta.manifest, TEXTS)))
    # Exact but for the length of a text's vector, which the names' mean stands for; float32 beside float32.
    assert np.allclose(logits, SHARPNESS * texts @ unit.T / lengths.mean(), atol=1e-3)
    assert (delta.manifest.labels, delta.manifest.method, delta.manifest.task_type) == (LABELS, "names", "single_label")


@pytest.mark.parametrize(
    ("label", "words"), [("GetWeather", "Get Weather"), ("card_arrival", "card arrival"), ("ABBR", "ABBR")]
)
def test_a_label_is_read_as_words(label, words):
    assert words_of(label) == words


def test_equal_names_are_refused():
    with pytest.raises(InvalidManifest):
        delta_of_names(loaded(), ["a", "a"])
