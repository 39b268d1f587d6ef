"""How good is a classifier of label names alone? Beside the answers of an entailment task, where one is given.

    python benchmarks/training/names.py --data FOLDER [--sets sst2 …] [--rows 500] [--entailment FILE]

Each set's test texts are answered by the nearest label name, with several sharpnesses, and, with a delta that has the
label `entailment`, by the label whose hypothesis is entailed most, as candidate labels are.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from onebert_bench.report import markdown_table
from onebert_bench.script import options, say
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.text.tokens import Text
from onebert_server.facades.clients.zero_shot import pairs
from onebert_store.file.delta import Delta
from onebert_store.file.format import load
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.names import delta_of_names, words_of

SHARPNESSES = 5.0, 10.0, 20.0, 30.0


def main() -> None:
    """Prints accuracy and the mean negative log likelihood by set and sharpness."""
    sets = ["sst2", "tweet_emotion", "snips_intent", "banking77"]
    asked = options(__doc__, data=Path, sets=sets, rows=500, entailment=None)
    base, table = load_base(), []
    for name in asked.sets:
        data = load_dataset(str(asked.data / name), DataOptions())
        test = data.splits.get("test", data.splits["validation"])
        chosen = np.random.default_rng(0).permutation(len(test))[: asked.rows]
        texts, gold = [test.texts[i] for i in chosen], np.array(test.gold)[chosen]
        found = [_answers(base, delta_of_names(base, data.labels, one), texts) for one in SHARPNESSES]
        losses = [f"{-log_softmax(one, axis=1)[range(len(gold)), gold].mean():.2f}" for one in found]
        row = [name, str(len(data.labels)), _accuracy(found[0], gold), *losses]
        if asked.entailment:
            row.append(_accuracy(_entailed(base, load(Path(asked.entailment)), texts, data.labels), gold))
        table.append(row)
        say(f"{name}: done")
    columns = ["data", "labels", "accuracy by names", *(f"loss, {one:.0f}" for one in SHARPNESSES)]
    print(markdown_table([*columns, *(["accuracy by entailment"] if asked.entailment else [])], table))


def _answers(base: Base, delta: Delta, texts: Sequence[Text]) -> NDArray[np.float64]:
    return np.array(predict_delta(base, delta, tokenize(base, delta.manifest, texts)), dtype=np.float64)


def _entailed(base: Base, delta: Delta, texts: Sequence[Text], labels: Sequence[str]) -> NDArray[np.float64]:
    words = [words_of(label) for label in labels]
    asked = [pair for text in texts for pair in pairs(str(text), words, None)]
    entailment = delta.manifest.labels.index("entailment")
    return _answers(base, delta, asked)[:, entailment].reshape(len(texts), len(labels))


def _accuracy(logits: NDArray[np.float64], gold: NDArray[np.int64]) -> str:
    return f"{100 * (logits.argmax(axis=1) == gold).mean():.1f}"


if __name__ == "__main__":
    main()
