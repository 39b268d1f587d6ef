"""Measures the speed of int8 beside bfloat16, and its loss of accuracy, for decision 14.

python benchmarks/serving/int8.py [--base NAME] [--threads 2] [--deltas FOLDER --data FOLDER]

The deltas are files of `onebert train`; a data set is a folder with the name of its task.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch

from onebert_bench.timing import interleaved_ms
from onebert_bench.workload import bitfit_tensors, sentences, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Rows, stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.format import load
from onebert_training.data.dataset import load_split
from onebert_training.data.options import ReadOptions
from onebert_training.fit.evaluation import predict
from onebert_training.fit.features import Inputs
from onebert_training.tasks.objectives import OBJECTIVES

REPETITIONS = {1: 200, 8: 60, 64: 15}


def main() -> None:
    """Prints the speed of mixed batches, and the metric of each delta in each precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--deltas", type=Path)
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    exact = load_base(asked.base)
    bases = {base.dtype_name: base for base in (exact, exact.in_dtype(torch.bfloat16), exact.in_dtype(torch.int8))}
    if asked.deltas is None:
        speed(bases)
    else:
        accuracy(bases, sorted(asked.deltas.glob("*.safetensors")), asked.data)


def speed(bases: dict[str, Base]) -> None:
    """Prints milliseconds of a batch in which every text has a task of its own."""
    for count, repetitions in REPETITIONS.items():
        tokens = tokenized(bases["float32"], sentences(bases["float32"], count))
        runs = {}
        for name, base in bases.items():
            rows = stack_rows(base, [fold(base, bitfit_tensors(base, seed)) for seed in range(count)])
            runs[name] = partial(answer, base, rows, tokens)
        with torch.inference_mode():
            times = interleaved_ms(runs, repetitions)
        shown = "  ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
        ratio = times["bfloat16"] / times["int8"]
        print(f"{count} tasks, {sum(map(len, tokens))} tokens: {shown}  int8 {ratio:.2f} times bfloat16", flush=True)


def answer(base: Base, rows: Rows, tokens: list[Tokens]) -> None:
    """Answers one text for each row."""
    compute_logits(base, rows, pack(base, tokens, range(len(tokens))))


def accuracy(bases: dict[str, Base], files: list[Path], data: Path) -> None:
    """Prints the deciding metric of each delta in per cent, and its difference from float32."""
    differences = {name: [] for name in bases}
    for file in files:
        scores = {name: score(base, file, data) for name, base in bases.items()}
        for name, found in scores.items():
            differences[name].append(found - scores["float32"])
        print(file.stem, "  ".join(f"{name} {found:.2f}" for name, found in scores.items()), flush=True)
    for name, found in differences.items():
        print(
            f"{name:8} minus float32: mean {np.mean(found):+.2f}  lowest {min(found):+.2f}  highest {max(found):+.2f}"
        )


def score(base: Base, file: Path, data: Path) -> float:
    """The deciding metric of a delta on the test split of its data, or on validation if there is no test split."""
    delta = load(file)
    manifest = delta.manifest
    source = str(data / str(manifest.training["task"]))
    examples = load_split(source, ReadOptions(), manifest.task_type, manifest.labels).split
    tokens = base.tokenizer.encode(examples.texts, manifest.max_length, align=manifest.per_token)
    with torch.no_grad():
        row = fold(base, to_tensors(delta, base), manifest.pooling)
    logits = predict(base, row, Inputs(base, tokens).features(0, manifest.pooling))
    scores = OBJECTIVES[manifest.task_type](manifest.labels).evaluate(examples, tokens, logits)
    return 100 * scores[str(manifest.training["metric"])]


if __name__ == "__main__":
    main()
