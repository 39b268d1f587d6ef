"""Searches for the fewest low-rank parts with which a delta agrees with its checkpoint."""

from collections.abc import Callable, Mapping, Sequence

from onebert_encoder.base.base import Base
from onebert_encoder.base.digest import differing_parts
from onebert_encoder.text.tokens import Text
from onebert_store.file.canonical import Array
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import Manifest
from onebert_training.fit.evaluation import predict, row_of
from onebert_training.fit.features import Inputs
from onebert_training.interop.checkpoint.agreement import Agreement, Answered, compare
from onebert_training.interop.checkpoint.finetuned import FineTuned, answer_all

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
        row = row_of(self._base, Delta(self._manifest, self._tensors(count)))
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
