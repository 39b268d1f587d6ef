"""Trains a classifier without an encoder: a logistic head on model2vec's static vectors, or fastText.

Arguments: KIND VECTORS ROWS OUT. VECTORS are distilled vectors, by `static_vectors.py`. ROWS has `train.jsonl`,
`validation.jsonl` and `test.jsonl`, whose lines are a `text` and the index of its `label`. OUT gets the model's files,
and `decisions.json`: for each test row a number for each label. Settings are chosen by accuracy on the validation rows.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

Classify = Callable[[Sequence[str]], np.ndarray]
"""Texts -> probabilities [texts, labels]."""
Rows = tuple[list[str], list[int]]

STRENGTHS = tuple(10.0**power for power in range(-3, 4))
# Ten dimensions and bigrams: Joulin et al. 2016, "Bag of Tricks for Efficient Text Classification".
FASTTEXT = {"dim": 10, "wordNgrams": 2, "bucket": 100_000, "thread": 1, "seed": 0, "verbose": 0}
RATES, EPOCHS = (0.1, 0.5, 1.0), (5, 25, 50)


def load_model(kind: str, vectors: Path, folder: Path) -> Classify:
    """A trained model."""
    if kind == "fasttext":
        import fasttext  # noqa: PLC0415

        return _by_fasttext(fasttext.load_model(str(folder / "model.bin")))
    head = np.load(folder / "head.npz")
    return _by_head(_vectors_of(vectors), head["weight"], head["bias"])


def train_model2vec(vectors: Path, train: Rows, validation: Rows, folder: Path) -> Classify:
    """Logistic regression on the mean vectors of the texts."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    encode = _vectors_of(vectors)
    x = encode(train[0])

    def fitted(strength: float) -> tuple[Classify, tuple[np.ndarray, np.ndarray]]:
        model = LogisticRegression(C=strength, max_iter=1000).fit(x, train[1])
        weight, bias = model.coef_, model.intercept_
        if len(weight) == 1:  # of two classes scikit-learn has the second one's alone
            weight, bias = np.vstack([0 * weight, weight]), np.append(0 * bias, bias)
        head = weight.astype(np.float32), bias.astype(np.float32)
        return _by_head(encode, *head), head

    best, (weight, bias) = max(map(fitted, STRENGTHS), key=lambda candidate: _accuracy(candidate[0], validation))
    np.savez(folder / "head.npz", weight=weight, bias=bias)
    return best


def train_fasttext(_: Path, train: Rows, validation: Rows, folder: Path) -> Classify:
    """A bag of words and bigrams."""
    import fasttext  # noqa: PLC0415

    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.writelines(f"__label__{gold} {_words(text)}\n" for text, gold in zip(*train, strict=True))
        file.flush()

        models = []
        for rate, epochs in product(RATES, EPOCHS):
            with suppress(RuntimeError):  # it ends so where a rate is too high for the rows
                models.append(fasttext.train_supervised(file.name, lr=rate, epoch=epochs, **FASTTEXT))
        best = max(models, key=lambda model: _accuracy(_by_fasttext(model), validation))
    best.save_model(str(folder / "model.bin"))
    return _by_fasttext(best)


@cache
def _vectors_of(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """Texts -> vectors [texts, width]; all tasks share one table."""
    from model2vec import StaticModel  # noqa: PLC0415

    model = StaticModel.from_pretrained(folder)
    return lambda texts: model.encode(list(texts), use_multiprocessing=False)


def _by_head(encode: Callable[[Sequence[str]], np.ndarray], weight: np.ndarray, bias: np.ndarray) -> Classify:
    def classify(texts: Sequence[str]) -> np.ndarray:
        logits = encode(texts) @ weight.T + bias
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    return classify


def _by_fasttext(model: Any) -> Classify:
    places = {label: int(label.removeprefix("__label__")) for label in model.get_labels()}

    def classify(texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), len(places)), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            labels, probabilities = model.predict(_words(text), k=-1)
            row[[places[label] for label in labels]] = probabilities
        return vectors

    return classify


def _words(text: str) -> str:
    """Words in lower case, apart from punctuation, as fastText's own examples prepare them."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text.lower()))


def _accuracy(classify: Classify, rows: Rows) -> float:
    return float((classify(rows[0]).argmax(1) == rows[1]).mean())


def _read(file: Path) -> Rows:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def main() -> None:
    """Trains, and writes the files."""
    kind, (vectors, rows, out) = sys.argv[1], map(Path, sys.argv[2:])
    train, validation, test = (_read(rows / f"{name}.jsonl") for name in ("train", "validation", "test"))
    out.mkdir(parents=True, exist_ok=True)
    classify = (train_fasttext if kind == "fasttext" else train_model2vec)(vectors, train, validation, out)
    decisions = np.log(classify(test[0]) + 1e-9)
    (out / "decisions.json").write_text(json.dumps(decisions.tolist()), encoding="utf-8")


if __name__ == "__main__":
    main()
