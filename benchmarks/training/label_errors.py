"""Writes docs/results.md's table of label errors: labels that were changed on purpose, and how many of them are found.

    python benchmarks/training/label_errors.py --data FOLDER [--seeds 3]

Of 3,000 training rows of each set one in twenty gets another label at random. Of as many rows as were changed, the
surest suspects, precision is the share that was changed. The labels that the sets came with have errors, too, which
count as wrong findings.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from onebert_bench.pages import markdown_table, write_section
from onebert_encoder.base.base import load_base
from onebert_store.tables.columns import Columns
from onebert_training.data.dataset import load_dataset
from onebert_training.data.examples import Split
from onebert_training.fit.features import Inputs
from onebert_training.insight.out_of_fold import out_of_fold
from onebert_training.insight.suspects import find_suspects

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
SETS = ("sst2", "banking77", "trec6", "snips_intent", "sms_spam")
ROWS, SHARE, MAX_LENGTH = 3000, 0.05, 128


def main() -> None:
    """Changes labels, looks for them, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    base = load_base()
    lines = []
    for name in SETS:
        data = load_dataset(str(arguments.data / name), Columns(), train_rows=ROWS)
        train, labels = data.splits["train"], len(data.labels)
        tokens = base.tokenizer.encode(train.texts, MAX_LENGTH)
        features = Inputs(base, tokens).features(base.config.num_layers, "mean")
        vectors = torch.cat(features.take(range(len(tokens)))).numpy()
        precision, listed = [], []
        for seed in range(arguments.seeds):
            rng = np.random.default_rng(seed)
            changed = rng.permutation(len(train))[: round(len(train) * SHARE)]
            gold = train.gold.copy()
            gold[changed] = (gold[changed] + rng.integers(1, labels, len(changed))) % labels
            suspects = find_suspects(out_of_fold(data.labels, vectors, Split(train.texts, gold)), gold)
            found = np.isin([one.row for one in suspects], changed)
            precision.append(found[: len(changed)].sum() / len(changed))
            listed.append((len(suspects), found.sum() / len(changed)))
        count, recall = np.mean(listed, axis=0)
        spread = f"{np.mean(precision):.3f} ± {np.std(precision, ddof=1):.3f}"
        lines.append([name, f"{len(train):,}", f"{len(changed):,}", spread, f"{count:,.0f}", f"{recall:.3f}"])
        print(lines[-1], flush=True)
    header = ["data", "rows", "changed (n)", "precision at n", "suspects", "of the changed ones among them"]
    write_section(PAGE, "label-errors", markdown_table(header, lines))


if __name__ == "__main__":
    main()
