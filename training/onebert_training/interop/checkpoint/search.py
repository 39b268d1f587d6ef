"""Searches for the fewest low-rank parts with which a delta's answers agree with its checkpoint's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_encoder.answering.scores import ACTIVATE, Array, own_activation, softmax
from onebert_encoder.base.base import Base
from onebert_encoder.base.digest import differing_parts
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import Manifest
from onebert_training.fit.features import Inputs, predict
from onebert_training.interop.checkpoint.finetuned import FineTuned, answer_all


@dataclass(frozen=True)
class Answered:
    """A model's logits for texts, and its own tokens; another model may tokenize differently."""

    tokens: Sequence[Tokens]
    logits: Sequence[Array]


@dataclass(frozen=True)
class Agreement:
    """How closely answers match a checkpoint's; differences are of probabilities, or of a regression's numbers.

    `share` counts texts (words in a token task) with the same answer; for a regression it is the lowest concordance
    correlation (Lin 1989) of any output, which is 1 only for equal numbers.
    """

    share: float
    largest: float
    mean: float

    def reaches(self, share: float, difference: float | None) -> bool:
        return self.share >= share and (difference is None or self.largest <= difference)


def compare(manifest: Manifest, texts: Sequence[Text], theirs: Answered, ours: Answered) -> Agreement:
    """The agreement of two models; `theirs` is the checkpoint."""
    scores = zip(*(_scores(manifest, one) for one in (theirs, ours)), strict=True)
    # If the tokens differ, a per-token task has logits of other shapes; only its answers can be compared.
    apart = [np.abs(a - b).ravel() for a, b in scores if a.shape == b.shape]
    differences = np.concatenate(apart) if apart else np.zeros(1)
    if manifest.task_type == "regression":
        outputs = zip(np.stack(theirs.logits).T, np.stack(ours.logits).T, strict=True)
        share = min(concordance(*pair) for pair in outputs)
    else:
        answers = (_answers(manifest, texts, one) for one in (theirs, ours))
        same = np.concatenate([_same(*pair) for pair in zip(*answers, strict=True)])
        share = float(same.mean()) if len(same) else 1.0
    return Agreement(share, float(differences.max()), float(differences.mean()))


def concordance(a: Array, b: Array) -> float:
    """Lin's concordance correlation; 1 for equal constants."""
    # Squares of float32 values overflow float32.
    a, b = a.astype(np.float64), b.astype(np.float64)
    spread = a.var() + b.var() + (a.mean() - b.mean()) ** 2
    return float(2 * ((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else 1.0


def _scores(manifest: Manifest, of: Answered) -> list[Array]:
    if manifest.task_type == "span":
        return [softmax(logits.T) for logits in of.logits]
    return [ACTIVATE[own_activation(manifest)](logits) for logits in of.logits]


def _answers(manifest: Manifest, texts: Sequence[Text], of: Answered) -> list[Answer]:
    return [
        answer(logits, manifest, text, tokens.alignment)
        for logits, text, tokens in zip(of.logits, texts, of.tokens, strict=True)
    ]


def _same(theirs: Answer, ours: Answer) -> Array:
    """[1], or [words] of `theirs` for labelings: whether the answers are equal."""
    match theirs, ours:
        case Prediction(), Prediction():
            same = (
                theirs.best == ours.best
                if theirs.selected is None
                else set(theirs.selected) == set(ours.selected or ())
            )
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
    """Compares a delta's answers with the checkpoint's; `tensors` makes a delta's tensors for a number of parts.

    `doubts` lists other reasons for disagreement (a different tokenizer), as sentences.
    """

    def __init__(
        self,
        checkpoint: FineTuned,
        base: Base,
        manifest: Manifest,
        texts: Sequence[Text],
        tensors: Callable[[int], Mapping[str, Array]],
    ) -> None:
        self._base, self._manifest, self._texts, self._tensors = base, manifest, texts, tensors
        length, align = manifest.max_length, manifest.per_token
        own = checkpoint.tokenizer.encode(texts, length, align)
        self._theirs = Answered(own, answer_all(checkpoint.model, own))
        tokens = base.tokenizer.encode(texts, length, align)
        self._features = Inputs(base, tokens).features(0, manifest.pooling)
        self.doubts: list[str] = []
        if parts := differing_parts(checkpoint.tokenizer.written, base.tokenizer.written):
            other = sum(a.input_ids != b.input_ids for a, b in zip(own, tokens, strict=True))
            self.doubts.append(
                f"the checkpoint's own tokenizer differs from the base's, which reads the texts of every task, in its "
                f"{parts}: it splits {other:,} of these {len(texts):,} texts otherwise"
            )

    def __call__(self, count: int) -> Agreement:
        row = fold_delta(self._base, Delta(self._manifest, self._tensors(count)))
        ours = Answered(self._features.tokens, predict(self._base, row, self._features))
        return compare(self._manifest, self._texts, self._theirs, ours)


def fewest(probe: Callable[[int], Agreement], most: int, enough: Callable[[Agreement], bool]) -> tuple[int, Agreement]:
    """The smallest sufficient number of parts, within 1 / `_CLOSE`, and its agreement; at worst `most`."""
    high, found = most, probe(most)
    if not enough(found) or not most:
        return high, found
    if enough(bare := probe(0)):
        return 0, bare
    low = 0
    while high - low > max(1, high // _CLOSE):
        # Geometric mean: between ten and a thousand parts, the middle is a hundred.
        middle = min(max(low + 1, round((max(low, 1) * high) ** 0.5)), high - 1)
        tried = probe(middle)
        if enough(tried):
            high, found = middle, tried
        else:
            low = middle
    return high, found
