"""A classifier of label names alone: a text gets the label whose name is nearest to it on the frozen base."""

import re
from collections.abc import Sequence

import numpy as np

from onebert_encoder.base.base import Base
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT, Delta
from onebert_training.fit.inputs import frozen_vectors
from onebert_training.fit.result import checked_delta
from onebert_training.fit.run import make_manifest
from onebert_training.fit.settings import Settings

METHOD = "names"
# A logit is so many cosines: the likeliest of 5, 10, 20 and 30 on each of four sets (benchmarks/results/accuracy.md).
SHARPNESS = 20.0


def words_of(label: str) -> str:
    """A label as people read it: `GetWeather` and `get_weather` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", label)


def delta_of_names(
    base: Base, labels: Sequence[str], sharpness: float = SHARPNESS, texts: Sequence[str] | None = None
) -> Delta:
    """Logits are `sharpness` cosines of a text and the labels' `texts`, else their names.

    Raises InvalidManifest, NotFinite.
    """
    longest = min(Settings().max_length, base.spec.max_length)
    manifest = make_manifest(base.spec, ("single_label", list(labels)), "mean", longest, METHOD, {"rows": 0})
    vectors = frozen_vectors(base, texts or [words_of(label) for label in labels], longest)
    lengths = np.linalg.norm(vectors, axis=1)
    weight = sharpness * vectors / (lengths[:, None] * lengths.mean())
    tensors = {HEAD_WEIGHT: weight, HEAD_BIAS: np.zeros(len(labels), dtype=np.float32)}
    return checked_delta(base, Delta(manifest, tensors), {}, "the base's vectors are not finite numbers")
