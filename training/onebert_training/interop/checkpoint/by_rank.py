"""Converts a fine-tuned checkpoint to the delta of least rank that agrees with it closely enough, or rejects it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidInput
from onebert_store.file import delta as names
from onebert_store.file.delta import Array, Delta, require_finite, require_fit
from onebert_store.file.format import MAX_FILE_BYTES, MAX_HEADER_BYTES
from onebert_store.file.manifest import Manifest
from onebert_training.fit.result import checked_delta
from onebert_training.fit.run import make_manifest
from onebert_training.interop.checkpoint.finetuned import FineTuned, OutOfReach, read_finetuned
from onebert_training.interop.checkpoint.options import CheckpointOptions
from onebert_training.interop.checkpoint.program import ask_program
from onebert_training.interop.checkpoint.search import Agreement, Probe, fewest
from onebert_training.interop.checkpoint.texts import read_texts
from onebert_training.interop.heads import NOT_FINITE, POOLER, TaskOptions, kind_of, outputs_of
from onebert_training.methods.low_rank import Parts, factorize


def import_by_rank(
    folder: Path, name: str, base: Base, options: CheckpointOptions, task_options: TaskOptions
) -> tuple[Delta, dict[str, Any]]:
    """Converts a checkpoint: biases and LayerNorms exactly, matrices as the fewest rank-one parts that agree.

    Returns the delta with golden logits, and its agreement with the checkpoint as JSON.

    Args:
        folder: the checkpoint's files.
        name: of the checkpoint, for the manifest.
        base: must compute in float32.
        options: texts to compare on, and the required agreement.
        task_options: the longest input is else the limit of the checkpoint's tokenizer, or else of the base.

    Raises:
        OutOfReach: its architecture, task or head cannot be imported, or the agreement is too low.
        InvalidInput: a file cannot be read, or labels do not fit.
        TensorMismatch: it lacks parameters, or they have other shapes.
        InvalidData: the texts cannot be read.
        InvalidManifest: labels, task type or length do not fit a manifest.
        NotFinite: a parameter or an answer contains NaN or infinity.
    """
    checkpoint = read_finetuned(folder, base)
    exact, pooling = exact_tensors(checkpoint, base)
    require_finite(exact)
    manifest = _manifest(checkpoint, name, base, pooling, task_options)
    require_fit(Delta(manifest, exact), base.spec)
    data, texts, _ = read_texts(options, manifest.task_type)
    changed = changed_matrices(checkpoint.params, base)
    parts = Parts({name: factorize(difference.double()) for name, difference in changed.items()}, options.max_rank)
    read_with = checkpoint.model, checkpoint.tokenizer
    theirs, program = ask_program(folder, *read_with, texts, manifest.task_type, manifest.max_length)
    probe = Probe(base, manifest, texts, theirs)
    doubts = probe.doubts(checkpoint.tokenizer)
    room = MAX_FILE_BYTES - MAX_HEADER_BYTES - sum(tensor.nbytes for tensor in exact.values())
    max_parts = min(len(parts), parts.fitting(room))
    left_out = changed_tables(checkpoint.params, base)

    def agreement(count: int) -> Agreement:
        return probe({**exact, **parts.tensors(count)})

    count, agreed = fewest(agreement, max_parts, lambda agreed: agreed.reaches(options.agree, options.max_difference))
    if not agreed.reaches(options.agree, options.max_difference):
        limit = (
            f"a file of {MAX_FILE_BYTES >> 20} MiB holds no more" if max_parts < len(parts) else "no rank gives more"
        )
        if options.max_rank is not None and max_parts == len(parts):
            limit = f"--max-rank {options.max_rank} allows no more"
        why = [limit, *doubts, *([f"a delta leaves out {', '.join(map(str, left_out))}"] if left_out else [])]
        raise OutOfReach(f"{agreed.shortfall(options.agree, options.max_difference)}: {'; '.join(why)}")
    facts = {
        **manifest.training,
        "agreement": agreed.facts(data, program),
        "warnings": [*manifest.training["warnings"], *doubts],
    }
    plain = Delta(manifest, {**exact, **parts.tensors(count)})
    ranks = parts.ranks(count)
    return checked_delta(base, plain, {"training": facts}, NOT_FINITE), {
        **agreed.record(manifest.task_type, program),
        "changed_matrices": len(ranks),
        "largest_rank": max(ranks, default=0),
        "mean_rank": round(fmean(ranks), 1) if ranks else 0.0,
        "checkpoint_bytes": checkpoint.weight_bytes,
        "left_out": [str(change) for change in left_out],
    }


def _manifest(checkpoint: FineTuned, name: str, base: Base, pooling: str, task_options: TaskOptions) -> Manifest:
    kind, spec, count = checkpoint.head.kind, base.spec, len(checkpoint.params[f"{checkpoint.head.linear}.bias"])
    if task_options.task_type is not None and kind != kind_of(task_options.task_type):
        raise InvalidInput(f"the checkpoint is for a {kind} task, which is no {task_options.task_type} task")
    (outputs, warnings), longest = outputs_of(checkpoint.config, kind, count, task_options), task_options.max_length
    if longest is None:
        longest = min(checkpoint.max_length or spec.max_length, spec.max_length)
    facts = {"imported_from": "checkpoint", "checkpoint": name, "warnings": warnings}
    activation = "tanh" if pooling == "pooler" else checkpoint.head.activation
    return make_manifest(spec, outputs, pooling, longest, "checkpoint", facts, activation=activation)


@dataclass(frozen=True)
class LeftOut:
    """A changed parameter that a delta cannot hold; `size` is the difference's norm relative to the base's."""

    name: str
    rows: int
    of: int
    size: float

    def __str__(self) -> str:
        return f"{self.name} ({self.rows:,} of {self.of:,} rows differ, by {self.size:.2%} of its norm)"


def exact_tensors(checkpoint: FineTuned, base: Base) -> tuple[dict[str, Array], str]:
    """The head and the changed biases and LayerNorms, by their names in a delta file; and the pooling."""
    theirs, head, pooling = checkpoint.params, checkpoint.head, checkpoint.head.pooling
    tensors = {names.HEAD_WEIGHT: theirs[f"{head.linear}.weight"], names.HEAD_BIAS: theirs[f"{head.linear}.bias"]}
    if head.dense is not None:
        weight, bias = theirs[f"{head.dense}.weight"], theirs[f"{head.dense}.bias"]
        of_base = base.params.get(f"{head.dense}.weight")
        if of_base is not None and torch.equal(weight, of_base):
            pooling = "pooler"
        else:
            tensors |= {names.HEAD_DENSE_WEIGHT: weight, names.HEAD_DENSE_BIAS: bias}
            tensors |= {names.HEAD_NORM: theirs[f"{head.norm}.weight"]} if head.norm else {}
    for name in base.spec.parameters:
        if pooling == "pooler" or not name.startswith(POOLER):
            difference = theirs[name] - base.params[name]
            if difference.any():
                tensors[names.DELTA + name] = difference
    return {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}, pooling


def changed_matrices(params: Mapping[str, Tensor], base: Base) -> dict[str, Tensor]:
    """Differences of the layers' matrices by module, without unchanged ones."""
    differences = {name: params[f"{name}.weight"] - base.params[f"{name}.weight"] for name in base.spec.modules}
    return {name: difference for name, difference in differences.items() if difference.any()}


def changed_tables(params: Mapping[str, Tensor], base: Base) -> list[LeftOut]:
    """Changes to the embeddings, ELECTRA's projection behind them, and DeBERTa's positions with their LayerNorm."""
    representable = (
        base.spec.parameters.keys() | {f"{name}.weight" for name in base.spec.modules} | {f"{POOLER}.weight"}
    )
    tables = []
    for name in base.anatomy.weights:
        if name not in representable:
            difference = params[name] - base.params[name]
            rows = int(difference.view(len(difference), -1).any(dim=1).sum())
            if rows:
                size = float(difference.norm() / base.params[name].norm())
                tables.append(LeftOut(name, rows, len(difference), size))
    return tables
