"""Converts a fine-tuned checkpoint to the smallest delta that agrees with it closely enough, or rejects it."""

from pathlib import Path
from statistics import fmean
from typing import Any

from onebert_encoder.base.base import Base
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData, InvalidInput
from onebert_store.file.delta import Delta, check, require_finite
from onebert_store.file.format import MAX_FILE_BYTES, MAX_HEADER_BYTES
from onebert_store.file.manifest import Manifest, TaskType
from onebert_training.data.texts import load_texts
from onebert_training.fit.result import checked_delta
from onebert_training.fit.run import make_manifest
from onebert_training.interop.checkpoint.differences import changed_matrices, changed_tables, exact_tensors
from onebert_training.interop.checkpoint.finetuned import FineTuned, read_finetuned
from onebert_training.interop.checkpoint.options import CheckpointOptions
from onebert_training.interop.checkpoint.search import Probe, fewest
from onebert_training.interop.heads import NOT_FINITE, Wanted, kind_of, outputs_of
from onebert_training.methods.low_rank import Parts, factorize

# More texts would hardly make the agreement more certain, and slow down every probe.
_MOST_TEXTS = 2000


def import_checkpoint(
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
        InvalidInput: its architecture, task or head cannot be imported, or the agreement is too low.
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
    data, texts = _texts(asked, manifest.task_type)
    changed = changed_matrices(checkpoint.params, base)
    parts = Parts({name: factorize(difference.double()) for name, difference in changed.items()}, asked.max_rank)
    probe = Probe(checkpoint, base, manifest, texts, lambda count: {**exact, **parts.tensors(count)})
    room = MAX_FILE_BYTES - MAX_HEADER_BYTES - sum(tensor.nbytes for tensor in exact.values())
    most = min(len(parts), parts.most(room))
    count, found = fewest(probe, most, lambda found: found.reaches(asked.agree, asked.max_difference))
    left_out = changed_tables(checkpoint.params, base)
    if not found.reaches(asked.agree, asked.max_difference):
        limit = f"a file of {MAX_FILE_BYTES >> 20} MiB holds no more" if most < len(parts) else "no rank gives more"
        if asked.max_rank is not None and most == len(parts):
            limit = f"--max-rank {asked.max_rank} allows no more"
        why = [limit, *probe.doubts, *([f"a delta leaves out {', '.join(map(str, left_out))}"] if left_out else [])]
        within = "" if asked.max_difference is None else f" with differences up to {asked.max_difference:g}"
        raise InvalidInput(
            f"agreement {found.share:.4f} with differences up to {found.largest:.4g} on {len(texts):,} texts, and not "
            f"{asked.agree:g}{within}: {'; '.join(why)}"
        )
    facts = {
        **manifest.training,
        "agreement": {"share": found.share, "largest": found.largest, "texts": len(texts), "data": data},
        "warnings": [*manifest.training["warnings"], *probe.doubts],
    }
    plain = Delta(manifest, {**exact, **parts.tensors(count)})
    ranks = parts.ranks(count)
    return checked_delta(base, plain, {"training": facts}, NOT_FINITE), {
        "agreement": found.share,
        "texts": len(texts),
        "largest_difference": found.largest,
        "mean_difference": found.mean if manifest.task_type == "regression" else None,
        "changed_matrices": len(ranks),
        "largest_rank": max(ranks, default=0),
        "mean_rank": round(fmean(ranks), 1) if ranks else 0.0,
        "checkpoint_bytes": checkpoint.weight_bytes,
        "left_out": [str(one) for one in left_out],
    }


def _texts(asked: CheckpointOptions, task_type: TaskType) -> tuple[str, list[Text]]:
    """The name of the data, and at most `_MOST_TEXTS` evenly spaced texts."""
    name, texts = load_texts(str(asked.data), asked.columns, asked.encoding, task_type)
    if len(texts) < 2:
        raise InvalidData(
            "--data has one text, and the answers of the model and of its delta are compared on two at least; "
            "give more texts like those that the task is for"
        )
    return name, texts[:: -(-len(texts) // _MOST_TEXTS)]


def _manifest(checkpoint: FineTuned, name: str, base: Base, pooling: str, wanted: Wanted) -> Manifest:
    kind, spec, count = checkpoint.head.kind, base.spec, len(checkpoint.params[f"{checkpoint.head.linear}.bias"])
    if wanted.task_type is not None and kind != kind_of(wanted.task_type):
        raise InvalidInput(f"the checkpoint is for a {kind} task, which is no {wanted.task_type} task")
    (task_type, labels, warnings), longest = outputs_of(checkpoint.config, kind, count, wanted), wanted.max_length
    if longest is None:
        longest = min(checkpoint.max_length or spec.max_length, spec.max_length)
    return make_manifest(
        spec,
        task_type=task_type,
        labels=labels,
        pooling=pooling,
        max_length=longest,
        method="checkpoint",
        training={"imported_from": "checkpoint", "checkpoint": name, "warnings": warnings},
    )
