"""The manifest of a run's delta file, made before the first step: whatever a file cannot hold is refused at once."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from onebert_store.errors import InvalidSettings, TooLarge
from onebert_store.file.decision import Decision
from onebert_store.file.delta import SPARSE_VALUE
from onebert_store.file.format import MAX_FILE_BYTES, MAX_HEADER_BYTES
from onebert_store.file.manifest import Manifest, format_for, parse_manifest
from onebert_store.file.strict_json import shown
from onebert_training.data.checks import listed

if TYPE_CHECKING:
    from onebert_training.fit.run import Run


def planned_manifest(run: "Run") -> Manifest:
    """The manifest with what is known of a run before its first step.

    Raises:
        InvalidSettings: a label that is to count as positive is none of the task's.
        InvalidManifest: a label or a name that a manifest cannot hold.
        TooLarge: the delta file would be over the limit.
    """
    if run.plan.servable and _file_bytes(run) > MAX_FILE_BYTES - MAX_HEADER_BYTES:
        raise TooLarge(f"the delta would be over the {MAX_FILE_BYTES >> 20} MiB of a file")
    spec = run.base.spec
    positives = _positives(run.settings.positive, run.data.labels)
    decision = Decision(positives=positives) if positives else None
    return parse_manifest(
        {
            "format": format_for(decision),
            "decision": decision and decision.model_dump(exclude_none=True),
            "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
            "task_type": run.data.task_type,
            "labels": list(run.data.labels),
            "pooling": run.pooling,
            "max_length": run.inputs.max_length,
            "method": run.method.text,
            "training": provenance(run),
        }
    )


def provenance(run: "Run") -> dict[str, Any]:
    """What the manifest says about the training, as far as it is known before the first step."""
    settings = run.settings
    return {
        "task": run.task,
        "data": {
            "name": run.data.name,
            "digest": run.data.digest,
            "rows": {name: len(split) for name, split in run.data.splits.items()},
            **({"pairs": True} if run.data.has_pairs else {}),
        },
        "seed": settings.seed,
        **({} if run.plan.exact else _of_steps(run)),
        **({"class_weight": settings.class_weight} if settings.class_weight else {}),
        **({"start": run.start} if run.start else {}),
        **({"contrastive": True} if run.contrastive else {}),
        "metric": run.metric,
        "parameters": {
            "delta": run.delta_parameters,
            "head": run.head_parameters,
            "percent": round(run.percent, 4),
        },
        "dtype": str(run.base.dtype).removeprefix("torch."),
        "onebert": version("onebert"),
    }


def _of_steps(run: "Run") -> dict[str, Any]:
    """What only a run that takes steps has."""
    config = run.base.config
    return {
        "learning_rate": run.learning_rate,
        "head_learning_rate": run.head_learning_rate,
        "batch_size": run.settings.batch_size,
        "dropout": {"hidden": config.hidden_dropout, "attention": config.attention_dropout},
    }


def _file_bytes(run: "Run") -> int:
    """How many bytes the tensors of the delta file will have; a sparse difference has an index beside a value."""
    plan = run.plan
    trained = sum(one.num_parameters * (2 if one.prefix == SPARSE_VALUE else 1) for one in plan.trainables)
    of_weights = plan.weights.num_bytes if plan.weights else 0
    return 4 * (trained + run.head_parameters) + of_weights


def _positives(said: str | None, labels: Sequence[str]) -> list[str]:
    """The labels that count as positive; one whose name has a comma is named alone.

    Raises:
        InvalidSettings: one is no label of the task.
    """
    if said is None:
        return []
    names = [said] if said in labels else [one.strip() for one in said.split(",")]
    if strangers := [one for one in names if one not in labels]:
        raise InvalidSettings(f"--positive {shown(strangers[0])} is no label of the task; it has {listed(labels)}")
    return names
