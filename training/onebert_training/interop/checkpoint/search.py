"""Searches for the fewest low-rank parts with which a delta's answers agree with its checkpoint's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_encoder.answering.scores import ACTIVATE, Array, own_activation, softmax
from onebert_encoder.base.base import Base
from onebert_encoder.base.digest import differing_parts
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import Manifest, TaskType
from onebert_training.fit.features import Inputs, predict
from onebert_training.insight.intervals import UNKNOWN, Interval, bootstrap, wilson


@dataclass(frozen=True)
class ModelLogits:
    """A model's logits for texts, and its own tokens; another model may tokenize differently."""

    tokens: Sequence[Tokens]
    logits: Sequence[Array]


@dataclass(frozen=True)
class Agreement:
    """How closely answers match a checkpoint's; differences are of probabilities, or of a regression's numbers.

    `share` counts texts (words in a token task) with the same answer; for a regression it is the lowest concordance
    correlation (Lin 1989) of any output, which is 1 only for equal numbers.

    Attributes:
        interval: the 95 % confidence interval of `share` on other texts like these; NaN if it cannot be told.
    """

    share: float
    largest: float
    mean: float
    texts: int = 0
    interval: Interval = UNKNOWN

    def reaches(self, share: float, difference: float | None) -> bool:
        return self.share >= share and (difference is None or self.largest <= difference)

    def shortfall(self, share: float, difference: float | None) -> str:
        """The beginning of a sentence on an agreement that does not reach the one asked for."""
        between = "" if self._ends is None else " (95 %: {:.4f} to {:.4f})".format(*self._ends)
        within = "" if difference is None else f" with differences up to {difference:g}"
        return (
            f"agreement {self.share:.4f}{between} with differences up to {self.largest:.4g} on {self.texts:,} texts, "
            f"and not {share:g}{within}"
        )

    def facts(self, data: str, program: str) -> dict[str, Any]:
        """The agreement for a manifest, with the names of the texts and of the program that answered for the model."""
        facts = {"share": self.share, "interval": self._ends, "largest": self.largest}
        return facts | {"texts": self.texts, "data": data, "compared_with": program}

    def record(self, task_type: TaskType, program: str) -> dict[str, Any]:
        return {
            "agreement": self.share,
            "compared_with": program,
            "agreement_interval": self._ends,
            "texts": self.texts,
            "largest_difference": self.largest,
            "mean_difference": self.mean if task_type == "regression" else None,
        }

    @property
    def _ends(self) -> list[float] | None:
        return None if isnan(self.interval.low) else list(self.interval)


def compare(manifest: Manifest, texts: Sequence[Text], theirs: ModelLogits, ours: ModelLogits) -> Agreement:
    """The agreement of two models; `theirs` is the checkpoint."""
    scores = zip(*(_scores(manifest, side) for side in (theirs, ours)), strict=True)
    # If the tokens differ, a per-token task has logits of other shapes; only its answers can be compared.
    apart = [np.abs(a - b).ravel() for a, b in scores if a.shape == b.shape]
    differences = np.concatenate(apart) if apart else np.zeros(1)
    if manifest.task_type == "regression":
        outputs = [np.stack(side.logits).T for side in (theirs, ours)]

        def lowest(rows: Any) -> float:
            return min(concordance(a[rows], b[rows]) for a, b in zip(*outputs, strict=True))

        share, interval = lowest(slice(None)), bootstrap(len(texts), lowest)
    else:
        answers = (_answers(manifest, texts, side) for side in (theirs, ours))
        same = np.concatenate([_same(*pair) for pair in zip(*answers, strict=True)])
        share = float(same.mean()) if len(same) else 1.0
        interval = wilson(same.sum(), len(same))
    return Agreement(share, float(differences.max()), float(differences.mean()), len(texts), interval)


def concordance(a: Array, b: Array) -> float:
    """Lin's concordance correlation; 1 for equal constants."""
    # Squares of float32 values overflow float32.
    a, b = a.astype(np.float64), b.astype(np.float64)
    spread = a.var() + b.var() + (a.mean() - b.mean()) ** 2
    return float(2 * ((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else 1.0


def _scores(manifest: Manifest, model: ModelLogits) -> list[Array]:
    if manifest.task_type == "span":
        return [softmax(logits.T) for logits in model.logits]
    return [ACTIVATE[own_activation(manifest)](logits) for logits in model.logits]


def _answers(manifest: Manifest, texts: Sequence[Text], model: ModelLogits) -> list[Answer]:
    return [
        answer(logits, manifest, text, tokens.alignment)
        for logits, text, tokens in zip(model.logits, texts, model.tokens, strict=True)
    ]


def _same(theirs: Answer, ours: Answer) -> Array:
    """[1], or [words] of `theirs` for labelings: whether the answers are equal."""
    match theirs, ours:
        case Prediction(), Prediction():
            same = theirs.best == ours.best if theirs.labels is None else set(theirs.labels) == set(ours.labels or ())
            return np.array([same])
        case Labeling(), Labeling():
            labels = {(word.start, word.end): word.label for word in ours.words}
            return np.array([labels.get((word.start, word.end)) == word.label for word in theirs.words], dtype=bool)
        case Extraction(), Extraction():
            places = [[(span.start, span.end) for span in side.answers] for side in (theirs, ours)]
            return np.array([places[0] == places[1]])
    raise TypeError("answers of two task types")


# The search stops within 1/32 of the best number of parts, since every probe answers all texts.
_CLOSE = 32


class Probe:
    """Compares the answers of a delta, by its tensors, with the checkpoint's."""

    def __init__(self, base: Base, manifest: Manifest, texts: Sequence[Text], theirs: ModelLogits) -> None:
        self._base, self._manifest, self._texts, self._theirs = base, manifest, texts, theirs
        tokenizer = base.tokenizer.reading(manifest.pooling)
        tokens = tokenizer.encode(texts, manifest.max_length, manifest.per_token)
        self._features = Inputs(base, tokens).features(0, manifest.pooling)

    def __call__(self, tensors: Mapping[str, Array]) -> Agreement:
        row = fold_delta(self._base, Delta(self._manifest, tensors))
        ours = ModelLogits(self._features.tokens, predict(self._base, row, self._features))
        return compare(self._manifest, self._texts, self._theirs, ours)

    def doubts(self, tokenizer: Tokenizer) -> list[str]:
        """Other reasons for disagreement, as sentences: a checkpoint with its `own` tokenizer."""
        if not (parts := differing_parts(tokenizer.written, self._base.tokenizer.written)):
            return []
        both = zip(self._theirs.tokens, self._features.tokens, strict=True)
        other = sum(a.input_ids != b.input_ids for a, b in both)
        return [
            f"the checkpoint's own tokenizer differs from the base's, which reads the texts of every task, in its "
            f"{parts}: it splits {other:,} of these {len(self._texts):,} texts otherwise"
        ]


def fewest(
    probe: Callable[[int], Agreement], max_parts: int, enough: Callable[[Agreement], bool]
) -> tuple[int, Agreement]:
    """The smallest sufficient number of parts, within 1 / `_CLOSE`, and its agreement; at worst `most`."""
    high, agreement = max_parts, probe(max_parts)
    if not enough(agreement) or not max_parts:
        return high, agreement
    if enough(bare := probe(0)):
        return 0, bare
    low = 0
    while high - low > max(1, high // _CLOSE):
        # Geometric mean: between ten and a thousand parts, the middle is a hundred.
        middle = min(max(low + 1, round((max(low, 1) * high) ** 0.5)), high - 1)
        tried = probe(middle)
        if enough(tried):
            high, agreement = middle, tried
        else:
            low = middle
    return high, agreement
