"""Converts a PEFT adapter folder to a delta with the same answers, or rejects it and names the unfit part."""

from pathlib import Path

from onebert_encoder.base.base import Base, has_tokenizer, read_tokenizer
from onebert_encoder.base.digest import differing_parts
from onebert_store.errors import InvalidInput, TensorMismatch, UnsupportedBase
from onebert_store.file.delta import HEAD_BIAS, Delta
from onebert_store.file.manifest import TaskType
from onebert_store.file.strict_json import shown
from onebert_training.interop.heads import PEFT_TASKS, Kind, Wanted, kind_of, layout_of, outputs_of
from onebert_training.interop.made import checked_delta, manifest_of
from onebert_training.interop.peft_conversion import Conversion, made_for
from onebert_training.interop.peft_folder import Adapter, read_adapter


def import_adapter(folder: Path, base: Base, wanted: Wanted = Wanted()) -> Delta:  # noqa: B008 - frozen
    """Reads a PEFT adapter as a delta for `base`; nothing that the folder names is opened or fetched.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        base: must compute in float32.
        wanted: without labels, the folder's model configuration names the outputs, or `LABEL_0`, …; a single output
            without a problem type is `multi_label`, by the sigmoid.

    Raises:
        InvalidInput: the folder cannot be read, or a delta cannot hold its content.
        MalformedFile: a file is damaged.
        TensorMismatch: the tensors do not fit this base.
        InvalidManifest: labels, task type or length do not fit a manifest.
        NotFinite: a tensor or an answer contains NaN or infinity.
    """
    adapter = read_adapter(folder, base.anatomy.family.prefix)
    kind = _kind(adapter, wanted.task_type)
    _require_tokenizer(folder, base)
    tensors, pooling = Conversion(adapter, base, layout_of(base.spec.model_type, kind)).run()
    outputs = outputs_of(adapter.model_config, kind, len(tensors[HEAD_BIAS]), wanted)
    longest = base.spec.max_length if wanted.max_length is None else wanted.max_length
    facts = {"imported_from": "peft", "peft_version": shown(str(adapter.config.get("peft_version", "")))}
    method = f"peft:{adapter.config['peft_type'].lower()}"
    manifest = manifest_of(base, outputs, pooling, longest, method, facts)
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    try:
        return checked_delta(base, arrays, manifest)
    except TensorMismatch as error:
        raise TensorMismatch(f"{error.detail}{made_for(adapter)}") from None


def _require_tokenizer(folder: Path, base: Base) -> None:
    """Rejects an adapter whose tokenizer may split a text differently from the base's, which will be used."""
    if not has_tokenizer(folder):
        return
    try:
        own, _ = read_tokenizer(folder, base.config)
    except UnsupportedBase as error:
        raise InvalidInput(f"the adapter's own tokenizer does not fit the base: {error.detail}") from None
    if parts := differing_parts(own.written, base.tokenizer.written):
        raise InvalidInput(
            f"the adapter's own tokenizer differs from the base's, which reads every task's texts, in its {parts}; "
            "where the adapter was trained with the base's, remove the tokenizer's files"
        )


def _kind(adapter: Adapter, task_type: TaskType | None) -> Kind:
    said = adapter.config.get("task_type")
    if said is None:
        return kind_of(task_type or "single_label")
    if not isinstance(said, str) or said not in PEFT_TASKS:
        raise InvalidInput(f"a delta cannot hold a {shown(str(said))} task; it holds {', '.join(PEFT_TASKS)}")
    if task_type is not None and kind_of(task_type) != PEFT_TASKS[said]:
        raise InvalidInput(f"the adapter is for {said}, which is no {task_type} task")
    return PEFT_TASKS[said]
