"""Windows: cut as Hugging Face tokenizers cut them, and answered as the same windows are one by one."""

from functools import cache

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from bases import loaded as base
from bases import tiny_base
from lengths import examples
from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.windows import WindowLogits, answer_windows
from onebert_encoder.text.tokens import Text, Tokens
from onebert_encoder.text.windows import MAX_WINDOWS, window_cuts
from onebert_store.errors import InvalidInput, TooLarge
from onebert_store.file.manifest import parse_manifest
from tiny_delta import manifest_dict

WORDS = ["good", "late", "orders", "zq", "ab", ".", "é😀", "broken"]


@cache
def hugging_face(family: str):
    return transformers.AutoTokenizer.from_pretrained(str(tiny_base(family)))


def cut(family: str, text: Text, tokens: int, overlap: int) -> list[tuple[Tokens, int]]:
    """Each window's tokens, and the first piece that it has."""
    tokenizer = base(family).tokenizer
    (pieces,) = tokenizer.split([text], 10**6)
    cuts = window_cuts(tokenizer, pieces, tokens, overlap)
    return [(tokenizer.cut(pieces, cut, align=True), cut[-1][0]) for cut in cuts]


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(["bert", "roberta"]),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=60),
    st.integers(12, 40),
    st.integers(0, 100),
    st.booleans(),
)
def test_windows_are_those_of_hugging_face(family, words, size, percent, pair) -> None:
    overlap = percent * (size // 2 - 5) // 100
    text = ("late", " ".join(words)) if pair else " ".join(words)
    encoded = hugging_face(family)(
        *(text if pair else (text,)),
        max_length=size,
        stride=overlap,
        truncation="only_second" if pair else True,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    got = cut(family, text, size, overlap)
    assert [window.input_ids for window, _ in got] == encoded["input_ids"]
    half = 1 if pair else 0
    context = text[1] if pair else text
    for number, (window, _) in enumerate(got):
        inside = [i for i, which in enumerate(encoded.sequence_ids(number)) if which == half]
        assert inside == [i for i, which in enumerate(window.alignment.sequences) if which == half]
        for i in inside:
            start, end = encoded["offset_mapping"][number][i]
            a, b = window.alignment.offsets[i]
            assert context[a:b] == context[start:end].strip()


def test_a_window_without_room_and_too_many_windows_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no room beside the special tokens and the first text"):
        cut("bert", ("late " * 9, "good " * 40), 16, 8)
    assert len(cut("bert", ("late " * 9, "good"), 16, 8)) == 1  # which fits as it is
    room = 10 - 2 - 4
    assert len(cut("bert", "good " * (MAX_WINDOWS * room + 4), 10, 4)) == MAX_WINDOWS
    with pytest.raises(TooLarge, match=f"{MAX_WINDOWS} are the most"):
        cut("bert", "good " * (MAX_WINDOWS * room + 5), 10, 4)


def test_siamese_windows_have_the_whole_first_text() -> None:
    tokenizer = base().tokenizer
    first, second = "late good", "good " * 40
    (pieces,) = tokenizer.split([(first, second)], 10**6)
    siamese = tokenizer.reading("siamese")
    windows = [siamese.cut(pieces, window_cut) for window_cut in window_cuts(siamese, pieces, 16, 4)]
    alone = [
        tokenizer.cut(window, window_cut)
        for window in tokenizer.split([second], 10**6)
        for window_cut in window_cuts(tokenizer, window, 16, 4)
    ]
    assert [window.input_ids[window.second :] for window in windows] == [window.input_ids for window in alone]
    firsts = {tuple(window.input_ids[: window.second]) for window in windows}
    assert firsts == {tuple(tokenizer.encode([first], 16)[0].input_ids)}
    for text in ((second, first), (second, "")):  # of which the first is longer than a window
        (long,) = tokenizer.split([text], 10**6)
        with pytest.raises(InvalidInput, match="no room beside the special tokens and the first text"):
            window_cuts(siamese, long, 16, 4)


def windows_of(text: Text, labels: int, whole: bool, seed: int) -> list[WindowLogits]:
    rng = np.random.default_rng(seed)
    return [
        WindowLogits(
            rng.normal(0, 3, labels if whole else (len(window), labels)).astype(np.float32), start, window.alignment
        )
        for window, start in cut("bert", text, 14, 4)
    ]


@pytest.mark.parametrize("reduction", ["max", "mean"])
@pytest.mark.parametrize("task_type", ["single_label", "multi_label", "regression"])
def test_scores_are_the_highest_or_the_mean_of_the_windows(task_type, reduction) -> None:
    manifest = parse_manifest(manifest_dict(task_type=task_type))
    windows = windows_of("good " * 50, 2, True, 3)
    got = answer_windows(windows, manifest, "good " * 50, reduction)
    function = {"single_label": softmax, "multi_label": expit, "regression": lambda values: values}[task_type]
    each = np.stack([function(window.logits.astype(np.float64)) for window in windows])
    np.testing.assert_allclose(got.scores, getattr(each, reduction)(axis=0), rtol=1e-12)
    raw = answer_windows(windows, manifest, "", reduction, Asked(activation="none"))
    np.testing.assert_allclose(
        raw.scores, getattr(np.stack([window.logits.astype(np.float64) for window in windows]), reduction)(axis=0)
    )


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_the_energy_of_windows_is_that_of_the_surest_or_their_mean(reduction) -> None:
    windows = windows_of("good " * 50, 2, True, 4)
    each = [-np.log(np.exp(window.logits.astype(np.float64)).sum()) for window in windows]
    energy = float(min(each) if reduction == "max" else np.mean(each))
    for number, abstained in ((energy - 1e-6, True), (energy + 1e-6, False)):
        manifest = parse_manifest(manifest_dict(format=2, decision={"abstain": {"energy": number}}))
        got = answer_windows(windows, manifest, "", reduction, Asked(energy=True))
        assert (got.energy, got.abstained) == (pytest.approx(energy, rel=1e-12), abstained)


@given(st.integers(1, 80), st.integers(0, 1000))
@settings(deadline=None, max_examples=examples(40))
def test_the_window_with_most_context_answers_a_word(count, seed) -> None:
    text = " ".join(np.random.default_rng(seed).choice(WORDS, count))
    labels = ["O", "B-x", "I-x"]
    manifest = parse_manifest(manifest_dict(task_type="token", pooling="none", labels=labels))
    windows = windows_of(text, 3, False, seed)
    got = answer_windows(windows, manifest, text, "union")
    (whole,) = base("bert").tokenizer.encode([text], 10**6, align=True)
    alone = answer(np.zeros((len(whole), 3)), manifest, text, whole.alignment)
    assert [(word.start, word.end) for word in got.words] == [(word.start, word.end) for word in alone.words]
    pieces = len(whole) - 2
    for word in got.words:
        first = next(i for i, (start, _) in enumerate(whole.alignment.offsets[1:-1]) if start == word.start)
        seen = []
        for window in windows:
            stop = window.start + len(window.logits) - 2
            if window.start <= first < stop:
                left = first - window.start if window.start else 10**6
                right = stop - 1 - first if stop < pieces else 10**6
                scores = softmax(window.logits[1 + first - window.start].astype(np.float64))
                seen.append((min(left, right), scores))
        most = max(around for around, _ in seen)
        scores = next(scores for around, scores in seen if around == most)
        assert (word.label, word.score) == (labels[scores.argmax()], pytest.approx(scores.max()))
    assert got.entities is not None


@given(st.integers(1, 60), st.integers(0, 1000), st.sampled_from([None, 3]))
@settings(deadline=None, max_examples=examples(40))
def test_spans_are_the_best_of_all_windows(count, seed, top_k) -> None:
    text = ("what is", " ".join(np.random.default_rng(seed).choice(WORDS, count)))
    manifest = parse_manifest(manifest_dict(task_type="span", pooling="none", labels=["start", "end"]))
    windows = windows_of(text, 2, False, seed)
    got = answer_windows(windows, manifest, text, "max", Asked(top_k))
    best: dict[tuple[int, int], float] = {}
    for span in windows:
        alone = answer(span.logits, manifest, text, span.alignment, Asked(top_k))
        for best_span in alone.answers:
            best[best_span.start, best_span.end] = max(best_span.score, best.get((best_span.start, best_span.end), 0.0))
    expected = sorted(best.items(), key=lambda item: -item[1])[: top_k or 1]
    assert [span.score for span in got.answers] == pytest.approx([value for _, value in expected])
    assert all(span.text == text[1][span.start : span.end] for span in got.answers)
