"""Loads a delta file as a classifier in this process, without a server (`onebert.load`)."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np

from onebert.tables import source_of
from onebert_encoder.answering.answer import answer, kind_of
from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.results import fields_of
from onebert_encoder.answering.scores import cut_rule
from onebert_encoder.answering.windows import WindowLogits, answer_windows, window_of
from onebert_encoder.base.base import Base
from onebert_encoder.explaining.texts import TextExplainer
from onebert_encoder.explaining.words import METHODS, Explanation, Method
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.text.tokens import Cut, Pieces, Tokens
from onebert_encoder.text.windows import window_cuts
from onebert_server.client import Input, Result
from onebert_store.errors import AnswerNotFinite, InvalidInput
from onebert_store.file import format as delta_file
from onebert_store.file.delta import Delta, listed, require_fit
from onebert_store.file.measured import score_of
from onebert_store.tables.columns import trained_columns
from onebert_store.tables.label_studio import plain_source
from onebert_store.tables.text.unicode import text_fault
from onebert_training.data.dataset import load_split
from onebert_training.data.options import ReadOptions
from onebert_training.device import load_on
from onebert_training.fit.features import Inputs, predict
from onebert_training.insight.evaluated import evaluate_delta


class Classifier:
    """One delta on its base; `load` makes it.

    Attributes:
        base: pass it to `load` again to share it with another delta.
        task_type: `single_label`, `multi_label`, `regression`, `token` or `span`.
        digest: the delta's digest, as a server reports it.
        manifest: the file's full description of itself.
    """

    def __init__(self, delta: Delta, base: Base) -> None:
        require_fit(delta, base.spec)
        self._delta, self.base = delta, base
        self.labels = tuple(delta.manifest.labels)
        self.task_type = delta.manifest.task_type
        self.digest = delta.digest
        self.manifest = delta.manifest
        self._window = window_of(delta.manifest, delta.manifest.max_length)
        self._tokenizer = base.tokenizer.reading(delta.manifest.pooling)
        self._row = fold_delta(base, delta)

    # A text or a pair is also a sequence of texts, and Python has no type that excludes them: the signatures overlap,
    # and the first match counts, as at run time.
    @overload
    def classify(self, inputs: Input, top_k: int | None = None) -> Result: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, inputs: Sequence[Input], top_k: int | None = None) -> list[Result]: ...
    def classify(self, inputs: Input | Sequence[Input], top_k: int | None = None) -> Any:
        """Classifies one input, or a sequence of inputs, with the same results as a server.

        Args:
            inputs: one input, or a sequence of inputs; a tuple is a pair of texts: (question, context) for a span task.
            top_k: number of scores, best first (None: all); for a span task, number of answers (None: one, at most 20).

        Returns:
            One result; for a sequence, a list of results in the order of the inputs.

        Raises:
            InvalidInput: the task does not take such an input, or `top_k` is below 1.
            AnswerNotFinite: a score is NaN or infinite.
        """
        if isinstance(inputs, str | tuple):
            return self._answers([inputs], top_k)[0]
        return self._answers(list(inputs), top_k)

    def evaluate(
        self,
        data: Any,
        *,
        split: str | None = None,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
    ) -> dict[str, Any]:
        """Measures the delta on labeled rows, as `onebert evaluate --json` prints it; `metrics` has the scores.

        Args:
            data: as for `train`.
            split: None is test, else validation, else training.
            text, text_pair, label: columns; None is those of the training, or found by name.

        Raises:
            InvalidData: the rows cannot be read, or have no label of the task.
        """
        reading, read = ReadOptions(text, text_pair, label), source_of(data)
        read = reading.read(read) if isinstance(read, str) else plain_source(read, reading.columns)
        reading = reading.remembering(trained_columns(self.manifest), read)
        labeled = load_split(read, reading, self.task_type, self.labels, split)
        return evaluate_delta(self.base, self._delta, labeled)[0]

    def __repr__(self) -> str:
        training = self.manifest.training
        score = score_of(training)
        facts = [repr(training["task"])] if "task" in training else []
        facts += [self.task_type, f"labels: {listed(self.labels)}"]
        facts += [f"{score.metric} {score.value:.4f} ({score.where})"] if score else []
        return f"Classifier({', '.join(facts)})"

    def explain(self, text: Input, method: Method = "occlusion") -> Explanation:
        """Shows the effect of each word on the answer to one input.

        A long text is truncated to `max_length` tokens even if `classify` reads it in windows; its answer may then
        differ.

        Args:
            text: a text, or a tuple of two.
            method: `occlusion` asks again without each word, as a server does; `gradient_times_input` gives each word's
                contribution in logits, to first order.

        Raises:
            InvalidInput: the task does not take such an input, or does not answer about whole texts; or an unknown
                method.
            AnswerNotFinite: a score or an effect is NaN or infinite.
        """
        self._check(text, 0)
        if method not in METHODS:
            raise InvalidInput(f"method is {' or '.join(METHODS)}")
        explainer = TextExplainer(self.base, self._row, self.manifest)
        return explainer.by_occlusion(text) if method == "occlusion" else explainer.by_gradient(text)

    def _answers(self, texts: list[Input], top_k: int | None) -> list[Result]:
        for number, text in enumerate(texts):
            self._check(text, number)
        if top_k is not None and top_k < 1:
            raise InvalidInput("top_k is at least 1")
        if not texts:
            return []
        manifest = self.manifest
        pieces, cuts = self._cut(texts)
        tokenizer = self._tokenizer
        tokens = [
            [tokenizer.cut(text_pieces, cut, manifest.per_token) for cut in of_text]
            for text_pieces, of_text in zip(pieces, cuts, strict=True)
        ]
        inputs = Inputs(self.base, [part for of_text in tokens for part in of_text])
        logits = iter(predict(self.base, self._row, inputs.features(0, manifest.pooling)))
        results = []
        for number, text in enumerate(texts):
            rows = [next(logits) for _ in cuts[number]]
            if not all(np.isfinite(row).all() for row in rows):
                raise AnswerNotFinite(f"the answer to input {number} is not a finite number")
            facts = self._facts(text, pieces[number], cuts[number], tokens[number], rows, Asked(top_k))
            results.append(msgspec.convert(facts, Result, from_attributes=True))
        return results

    def _cut(self, texts: list[Input]) -> tuple[list[Pieces], list[Sequence[Cut]]]:
        """The pieces of each text, and the parts to read: what fits, or all of it in windows."""
        max_length, tokenizer, window = self.manifest.max_length, self._tokenizer, self._window
        if window is None:
            rule = cut_rule(self.manifest)
            pieces = tokenizer.split(texts, sys.maxsize if rule == "ends" else max_length)
            return pieces, [(tokenizer.fit(text_pieces, max_length, rule),) for text_pieces in pieces]
        pieces = tokenizer.split(texts, sys.maxsize)
        return pieces, [window_cuts(tokenizer, text_pieces, window.tokens, window.overlap) for text_pieces in pieces]

    def _facts(
        self,
        text: Input,
        pieces: Pieces,
        cuts: Sequence[Cut],
        tokens: Sequence[Tokens],
        rows: list[Any],
        options: Asked,
    ) -> dict[str, Any]:
        window, manifest = self._window, self.manifest
        if window is None:
            result = answer(rows[0], manifest, text, tokens[0].alignment, options, tokens[0].truncated)
            return {**fields_of(result, options.top_k), "tokens": len(tokens[0]), "truncated": tokens[0].truncated}
        windows = [
            WindowLogits(row, cut[-1][0], part.alignment) for row, cut, part in zip(rows, cuts, tokens, strict=True)
        ]
        result = answer_windows(windows, manifest, text, window.reduction, options)
        full_cut = tuple((0, length) for length in pieces.lengths)
        count, truncated = self._tokenizer.measure(pieces, full_cut)
        return {**fields_of(result, options.top_k), "tokens": count, "truncated": truncated, "windows": len(windows)}

    def _check(self, text: Input, number: int) -> None:
        texts = text if isinstance(text, tuple) and len(text) == 2 else (text,)
        if why := text_fault(*texts):
            raise InvalidInput(f"input {number}, which is a text or a tuple of two: {why}")
        kind = kind_of(self.manifest)
        if not kind.takes(isinstance(text, tuple)):
            raise InvalidInput(f"input {number}: a {self.manifest.task_type} task takes {kind.question}")


def load(
    file: str | Path, *, base: str | Base | None = None, dtype: str = "float32", device: str | None = None
) -> Classifier:
    """Loads a delta file on its base.

    Args:
        file: written by `onebert train` or `onebert.train`.
        base: Hub id or folder, None for the default base; or the `base` of another classifier, to share it: then
            `dtype` and `device` are ignored.
        dtype: `float32` or `bfloat16`.
        device: `cpu`, `cuda` or `cuda:N`; None is a GPU if there is one.

    Raises:
        InvalidDelta: the file is no delta, or is for another base.
        BaseNotFound, UnsupportedBase, InvalidSettings: the base or the device is not available.
    """
    delta = delta_file.load(Path(file))
    return Classifier(delta, base if isinstance(base, Base) else load_on(base, dtype, device))
