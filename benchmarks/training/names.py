"""How good is a classifier of label names alone? Beside the answers of an entailment task, where one is given.

    python benchmarks/training/names.py --data FOLDER [--sets sst2 …] [--rows 500] [--entailment FILE]
    python benchmarks/training/names.py --data FOLDER --few 2 4 8 --seeds 0 1 2

Each set's test texts are answered by the nearest label name, with several sharpnesses, and, with a delta that has the
label `entailment`, by the label whose hypothesis is entailed most, as candidate labels are. With `--few` the exact head
of so many examples of each label is measured, and the one that has each label's name as one more.
"""

import base64
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from onebert_bench.report import markdown_table
from onebert_bench.script import options, say
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.text.tokens import Text
from onebert_server.facades.clients.zero_shot import pairs
from onebert_store.file.delta import Delta
from onebert_store.file.format import load, loads
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.data.splitting import subset
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.names import delta_of_names, words_of
from onebert_training.worker import train_examples

SHARPNESSES = 5.0, 10.0, 20.0, 30.0


def main() -> None:
    """Prints accuracy and the mean negative log likelihood by set and sharpness."""
    sets = ["sst2", "tweet_emotion", "snips_intent", "banking77"]
    asked = options(__doc__, data=Path, sets=sets, rows=500, entailment=None, few=[0], seeds=[0, 1, 2])
    base, table = load_base(), []
    if any(asked.few):
        print(markdown_table(["data", "examples of each", "without names", "with names"], _few(base, asked)))
        return
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


def _few(base: Base, asked: Any) -> list[list[str]]:
    """Accuracy by set and number of examples, the mean over the seeds, of heads as the trainer makes them."""
    table = []
    for name in asked.sets:
        data = load_dataset(str(asked.data / name), DataOptions())
        test, train = data.splits.get("test", data.splits["validation"]), data.splits["train"]
        chosen = np.random.default_rng(0).permutation(len(test))[: asked.rows]
        texts, gold = [test.texts[i] for i in chosen], np.array(test.gold)[chosen]
        names = [{"label": label} for label in data.labels]
        for few in filter(None, asked.few):
            right: dict[bool, list[float]] = {False: [], True: []}
            for seed, named in product(asked.seeds, right):
                drawn = subset(train, "single_label", few * len(data.labels), seed)
                rows = [
                    {"text": text, "label": data.labels[at]} for text, at in zip(drawn.texts, drawn.gold, strict=True)
                ]
                request = {"task": name, "rows": rows + names * named}
                delta = loads(base64.b64decode(train_examples(base, request)["content"]))
                logits = _answers(base, delta, texts)
                labels = [delta.manifest.labels[at] for at in logits.argmax(axis=1)]
                right[named].append(np.mean([label == data.labels[at] for label, at in zip(labels, gold, strict=True)]))
            table.append([name, str(few), *(f"{100 * np.mean(shares):.1f}" for shares in right.values())])
            say(f"{name}: {few} done")
    return table


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
