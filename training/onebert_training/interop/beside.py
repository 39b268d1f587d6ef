"""Reads the settings beside a model's weights; those that change its answers and that no delta holds are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onebert_encoder.base.source import read_json
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import listed

_CONFIG, _SETFIT, _SENTENCE = "config.json", "config_setfit.json", "config_sentence_transformers.json"
_TEXT_ALONE = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_ANYTHING = object()
_CHANGES = "{} sets {}, which may change the model's answers and which no delta holds"

# File -> its keys that are read or have no effect, and the value that changes no answer; every other key must be off.
_ALLOWED: Mapping[str, Mapping[str, Any]] = {
    _SETFIT: {"labels": _ANYTHING},
    _SENTENCE: dict.fromkeys(
        ("__version__", "model_type", "prompts", "similarity_fn_name", "default_prompt_name"), _ANYTHING
    ),
    "sentence_*_config.json": {
        **dict.fromkeys(("max_seq_length", "unpad_inputs"), _ANYTHING),
        "transformer_task": "feature-extraction",
        "modality_config": _TEXT_ALONE,
        "module_output_name": "token_embeddings",
    },
}
DENSE: Mapping[str, Any] = {
    **dict.fromkeys(("in_features", "out_features", "bias", "activation_function"), _ANYTHING),
    **dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding"),
}


def read_settings(folder: Path) -> dict[str, Any]:
    """The keys of config.json, or none without one, with the labels that SetFit keeps beside it.

    Raises:
        InvalidInput: a setting would change the answers, and no delta holds it.
        MalformedFile: a file cannot be read.
    """
    for pattern, allowed in _ALLOWED.items():
        for path in sorted(folder.glob(pattern)):
            refuse_others(folder, path.name, allowed)
    config = read_json(folder / _CONFIG) if (folder / _CONFIG).exists() else {}
    if config.get("function_to_apply") is not None:
        raise InvalidInput(_CHANGES.format(_CONFIG, "function_to_apply"))
    labels = read_json(folder / _SETFIT).get("labels") if (folder / _SETFIT).exists() else None
    if isinstance(labels, list) and labels:
        config = {key: value for key, value in config.items() if key != "label2id"}
        config["id2label"] = {str(place): label for place, label in enumerate(labels)}
    return config


def refuse_others(folder: Path, name: str, allowed: Mapping[str, Any]) -> None:
    """Refuses a file with a key that is on and not `allowed`; raises InvalidInput, MalformedFile."""
    values = read_json(folder / name)
    changing = {
        key
        for key, value in values.items()
        if value and allowed.get(key) is not _ANYTHING and value != allowed.get(key)
    }
    prompts, default = values.get("prompts"), values.get("default_prompt_name")
    if isinstance(prompts, dict) and isinstance(default, str) and prompts.get(default):
        changing.add("default_prompt_name")
    if changing:
        raise InvalidInput(_CHANGES.format(name, listed(changing)))
