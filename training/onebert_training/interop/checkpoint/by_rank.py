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
from onebert_store.file.delta import Array, Delta, check, require_finite
from onebert_store.file.format import MAX_FILE_BYTES, MAX_HEADER_BYTES
from onebert_store.file.manifest import Manifest
from onebert_training.fit.result import checked_delta
from onebert_training.fit.run import make_manifest
from onebert_training.interop.checkpoint.finetuned import FineTuned, OutOfReach, answer_all, read_finetuned
from onebert_training.interop.checkpoint.options import CheckpointOptions
from onebert_training.interop.checkpoint.search import Agreement, Answered, Probe, fewest
from onebert_training.interop.checkpoint.texts import read_texts
from onebert_training.interop.heads import NOT_FINITE, POOLER, Wanted, kind_of, outputs_of
from onebert_training.methods.low_rank import Parts, factorize


def import_by_rank(
    folder: Path, name: str, base: Base, asked: CheckpointOptions, wanted: Wanted
) -> tuple[Delta, dict[str, Any]]:
    """Converts a checkpoint: biases and LayerNorms exactly, matrices as the fewest rank-one parts that agree.

    Returns the delta with golden logits, and its agreement with the checkpoint as JSON.

    Args:
        folder: the checkpoint's files.
        name: of the checkpoint, for the manifest.
        base: must compute in float32.
        asked: texts to compare on, and the required agreement.
        wanted: the longest input is else the limit of the checkpoint's tokenizer, or else of the base.

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
    manifest = _manifest(checkpoint, name, base, pooling, wanted)
    check(Delta(manifest, exact), base.spec)
    data, texts, _ = read_texts(asked, manifest.task_type)
    changed = changed_matrices(checkpoint.params, base)
    parts = Parts({name: factorize(difference.double()) for name, difference in changed.items()}, asked.max_rank)
    own = checkpoint.tokenizer.encode(texts, manifest.max_length, manifest.per_token)
    probe = Probe(base, manifest, texts, Answered(own, answer_all(checkpoint.model, own)))
    doubts = probe.doubts(checkpoint.tokenizer)
    room = MAX_FILE_BYTES - MAX_HEADER_BYTES - sum(tensor.nbytes for tensor in exact.values())
    most = min(len(parts), parts.most(room))
    left_out = changed_tables(checkpoint.params, base)

    def agreement(count: int) -> Agreement:
        return probe({**exact, **parts.tensors(count)})

    count, found = fewest(agreement, most, lambda found: found.reaches(asked.agree, asked.max_difference))
    if not found.reaches(asked.agree, asked.max_difference):
        limit = f"a file of {MAX_FILE_BYTES >> 20} MiB holds no more" if most < len(parts) else "no rank gives more"
        if asked.max_rank is not None and most == len(parts):
            limit = f"--max-rank {asked.max_rank} allows no more"
        why = [limit, *doubts, *([f"a delta leaves out {', '.join(map(str, left_out))}"] if left_out else [])]
        raise OutOfReach(f"{found.beside(asked.agree, asked.max_difference)}: {'; '.join(why)}")
    facts = {
        **manifest.training,
        "agreement": found.facts(data),
        "warnings": [*manifest.training["warnings"], *doubts],
    }
    plain = Delta(manifest, {**exact, **parts.tensors(count)})
    ranks = parts.ranks(count)
    return checked_delta(base, plain, {"training": facts}, NOT_FINITE), {
        **found.record(manifest.task_type),
        "changed_matrices": len(ranks),
        "largest_rank": max(ranks, default=0),
        "mean_rank": round(fmean(ranks), 1) if ranks else 0.0,
        "checkpoint_bytes": checkpoint.weight_bytes,
        "left_out": [str(one) for one in left_out],
    }


def _manifest(checkpoint: FineTuned, name: str, base: Base, pooling: str, wanted: Wanted) -> Manifest:
    kind, spec, count = checkpoint.head.kind, base.spec, len(checkpoint.params[f"{checkpoint.head.linear}.bias"])
    if wanted.task_type is not None and kind != kind_of(wanted.task_type):
        raise InvalidInput(f"the checkpoint is for a {kind} task, which is no {wanted.task_type} task")
    (outputs, warnings), longest = outputs_of(checkpoint.config, kind, count, wanted), wanted.max_length
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
    found = {names.HEAD_WEIGHT: theirs[f"{head.linear}.weight"], names.HEAD_BIAS: theirs[f"{head.linear}.bias"]}
    if head.dense is not None:
        weight, bias = theirs[f"{head.dense}.weight"], theirs[f"{head.dense}.bias"]
        of_base = base.params.get(f"{head.dense}.weight")
        if of_base is not None and torch.equal(weight, of_base):
            pooling = "pooler"
        else:
            found |= {names.HEAD_DENSE_WEIGHT: weight, names.HEAD_DENSE_BIAS: bias}
            found |= {names.HEAD_NORM: theirs[f"{head.norm}.weight"]} if head.norm else {}
    for name in base.spec.parameters:
        if pooling == "pooler" or not name.startswith(POOLER):
            difference = theirs[name] - base.params[name]
            if difference.any():
                found[names.DELTA + name] = difference
    return {name: tensor.contiguous().numpy() for name, tensor in found.items()}, pooling


def changed_matrices(params: Mapping[str, Tensor], base: Base) -> dict[str, Tensor]:
    """Differences of the layers' matrices by module, without unchanged ones."""
    found = {name: params[f"{name}.weight"] - base.params[f"{name}.weight"] for name in base.spec.modules}
    return {name: difference for name, difference in found.items() if difference.any()}


def changed_tables(params: Mapping[str, Tensor], base: Base) -> list[LeftOut]:
    """Changes to the embeddings, ELECTRA's projection behind them, and DeBERTa's positions with their LayerNorm."""
    held = base.spec.parameters.keys() | {f"{name}.weight" for name in base.spec.modules} | {f"{POOLER}.weight"}
    found = []
    for name in base.anatomy.weights:
        if name not in held:
            difference = params[name] - base.params[name]
            rows = int(difference.view(len(difference), -1).any(dim=1).sum())
            if rows:
                size = float(difference.norm() / base.params[name].norm())
                found.append(LeftOut(name, rows, len(difference), size))
    return found
