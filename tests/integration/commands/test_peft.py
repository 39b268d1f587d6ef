"""Adapters of the installed `peft`, imported as deltas: the same logits, or a refusal that names what does not fit."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LNTuningConfig, LoraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from bases import tiny_base
from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidInput, MalformedFile, OneBertError, TensorMismatch
from onebert_store.file.format import dumps, loads
from onebert_training.interop.heads import TaskOptions
from onebert_training.interop.peft_import import import_adapter
from peft_models import assert_equal_logits, base_of, delta_logits, model_logits, random_adapter, texts

pytestmark = [
    # peft still calls transformers by a name that transformers has renamed.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    # So does peft warn of its own LN tuning, and of the biases that `lora_bias` saves.
    pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LoRA tensor:UserWarning"),
]

ALL_MAPS = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(
        **{"task_type": "SEQ_CLS", "r": 4, "lora_alpha": 16, "target_modules": ["query", "value"], **options}
    )


def ln_tuning(**options: Any) -> LNTuningConfig:
    return LNTuningConfig(**{"task_type": "SEQ_CLS", "target_modules": ["LayerNorm"], **options})


MODERN = {"modules_to_save": ["head", "classifier"]}
MODERN_PATTERNS = {"rank_pattern": {"Wqkv": 2, "layers.1.mlp.Wo": 3}, "alpha_pattern": {"Wi": 5, "attn.Wo": 7}}
PATTERNS = {"rank_pattern": {"value": 2, "layer.1.output.dense": 3}, "alpha_pattern": {"query": 5, r"2\..*dense": 7}}

SAME = {
    "lora": ("bert", lora()),
    "rank-stabilized lora": ("bert", lora(use_rslora=True, target_modules=ALL_MAPS, **PATTERNS)),
    "lora with biases in B": ("bert", lora(lora_bias=True)),
    "lora and all biases": ("bert", lora(bias="all")),
    "lora on the pooler, too": ("bert", lora(target_modules="all-linear", bias="all")),
    "lora and a pooler of its own": ("bert", lora(modules_to_save=["pooler", "classifier"])),
    "lora and whole LayerNorms": ("bert", lora(modules_to_save=["LayerNorm", "classifier"])),
    "lora by a regular expression": ("bert", lora(target_modules=r".*\.(query|output\.dense)")),
    "lora on some maps of some layers": (
        "bert",
        lora(target_modules=ALL_MAPS, exclude_modules=["attention.output.dense"], layers_to_transform=[0, 2]),
    ),
    "dora on every map and its biases": ("bert", lora(use_dora=True, target_modules=ALL_MAPS, bias="all")),
    "dora, roberta": ("roberta", lora(use_dora=True, target_modules="all-linear", bias="lora_only")),
    "dora, tokens, distilbert": (
        "distilbert",
        lora(task_type="TOKEN_CLS", use_dora=True, target_modules=["k_lin", "lin1", "lin2"]),
    ),
    "ln": ("bert", ln_tuning()),
    "ia3": ("bert", IA3Config(task_type="SEQ_CLS")),
    "ia3 on an input and on outputs": (
        "bert",
        IA3Config(task_type="SEQ_CLS", target_modules=ALL_MAPS, feedforward_modules=["output.dense"]),
    ),
    "ia3 on an output of one layer, distilbert": (
        "distilbert",
        IA3Config(task_type="TOKEN_CLS", target_modules=["layer.1.ffn.lin2"], feedforward_modules=[]),
    ),
    "tokens, electra": ("electra", lora(task_type="TOKEN_CLS", bias="all")),
    "relu head": ("distilbert", lora(target_modules=["q_lin"])),
    "gelu head": ("electra", lora()),
    "lora, mpnet": ("mpnet", lora(target_modules="all-linear", bias="all")),
    # Both maps read the tokens and their relative positions.
    "tokens, deberta": ("deberta-v2", lora(task_type="TOKEN_CLS", target_modules=["query_proj", "key_proj"])),
    "ia3, deberta": (
        "deberta-v2",
        IA3Config(task_type="TOKEN_CLS", target_modules=["key_proj", "value_proj"], feedforward_modules=[]),
    ),
    "spans": ("roberta", lora(task_type="QUESTION_ANS")),
    # `Wo` is the last map of the attention and of the MLP.
    "rank-stabilized lora with patterns, modernbert": (
        "modernbert",
        lora(**MODERN, target_modules=["Wqkv", "Wo", "Wi"], use_rslora=True, **MODERN_PATTERNS),
    ),
    "lora and LayerNorms, modernbert": (
        "modernbert",
        lora(target_modules=["Wqkv"], modules_to_save=["head", "classifier", "mlp_norm", "final_norm"]),
    ),
    "dora, modernbert": ("modernbert", lora(**MODERN, target_modules=["Wo"], use_dora=True)),
    "ln, modernbert": ("modernbert", ln_tuning(**MODERN, target_modules=["mlp_norm", "final_norm"])),
    "tokens, modernbert": ("modernbert", lora(**MODERN, task_type="TOKEN_CLS", target_modules=["Wqkv", "mlp.Wo"])),
}


@pytest.mark.parametrize(("family", "config"), SAME.values(), ids=SAME.keys())
def test_an_imported_adapter_answers_what_peft_answers(family: str, config: Any, tmp_path: Path) -> None:
    adapted, base = random_adapter(family, config, tmp_path), base_of(family)
    # Through the file, as it is served.
    delta = loads(dumps(import_adapter(tmp_path, base)))
    tokens = texts()
    assert_equal_logits(delta_logits(base, delta, tokens), model_logits(adapted, tokens))
    assert delta.manifest.golden is not None


def test_a_heads_activation_is_the_models_own_or_is_refused(tmp_path: Path) -> None:
    config, key = lora(**MODERN, target_modules=["Wqkv"]), "classifier_activation"
    adapted, base = random_adapter("modernbert", config, tmp_path, **{key: "relu"}), base_of("modernbert")
    adapted.get_base_model().config.save_pretrained(tmp_path)
    wanted = TaskOptions(task_type="single_label")
    delta = loads(dumps(import_adapter(tmp_path, base, wanted)))
    assert delta.manifest.activation == "relu"
    assert_equal_logits(delta_logits(base, delta, texts()), model_logits(adapted, texts()))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "silu"}))
    with pytest.raises(InvalidInput, match=f"{key} of the checkpoint's classifier is silu, and a delta's is tanh, ge"):
        import_adapter(tmp_path, base, wanted)


def spoil(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Changes tensors of an adapter; None removes one."""
    path = folder / "adapter_model.safetensors"
    tensors = {**load_file(path), **change}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def assert_refused(folder: Path, error: type[OneBertError], named: str, base: Base | None = None) -> None:
    with pytest.raises(error) as caught:
        import_adapter(folder, base or base_of("bert"))
    assert named in caught.value.detail
    assert "\n" not in caught.value.detail


FOREIGN = {
    "embeddings": ("bert", lora(target_modules=["word_embeddings"]), "embeddings.word_embeddings"),
    "trained embeddings": ("bert", lora(modules_to_save=["word_embeddings"]), "embeddings.word_embeddings.weight"),
    "ia3 on what the mlp reads": (
        "bert",
        IA3Config(
            task_type="SEQ_CLS",
            target_modules=["key", "intermediate.dense"],
            feedforward_modules=["intermediate.dense"],
        ),
        "encoder.layer.0.intermediate.dense",
    ),
    "ia3 on queries that positions turn": (
        "modernbert",
        IA3Config(task_type="SEQ_CLS", **MODERN, target_modules=["Wqkv"], feedforward_modules=[]),
        "layers.0.attn.Wqkv.q",
    ),
}


@pytest.mark.parametrize(("family", "config", "named"), FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
def test_what_a_delta_cannot_hold_is_refused_by_name(family: str, config: Any, named: str, tmp_path: Path) -> None:
    random_adapter(family, config, tmp_path)
    assert_refused(tmp_path, InvalidInput, named, base_of(family))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    random_adapter("bert", lora(), folder)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of a good adapter folder, to spoil."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((good / name).read_bytes())
    return tmp_path


CONFIGS = {
    "another tuner": ({"peft_type": "PREFIX_TUNING"}, InvalidInput, "PREFIX_TUNING"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, InvalidInput, "pissa_niter_4"),
    "fan in fan out": ({"fan_in_fan_out": True}, InvalidInput, "fan_in_fan_out"),
    "an option of tomorrow": ({"use_something": {"x": 1}}, InvalidInput, "use_something"),
    "new tokens": ({"trainable_token_indices": [1, 2]}, InvalidInput, "trainable_token_indices"),
    "generation": ({"task_type": "CAUSAL_LM"}, InvalidInput, "CAUSAL_LM"),
    "no alpha": ({"lora_alpha": None}, InvalidInput, "lora_alpha"),
    "another rank": ({"r": 8}, TensorMismatch, "has rank 4, 8 by its adapter_config.json"),
    "no dora": ({"use_dora": True}, InvalidInput, "encoder.layer.0.attention.self.query"),
    "a flag that is a text": ({"use_rslora": "no"}, InvalidInput, "use_rslora"),
    "patterns without end": ({"rank_pattern": {str(n): 4 for n in range(1001)}}, InvalidInput, "at most 1000 patterns"),
    "a pattern without end": ({"rank_pattern": {"(.|.)*X": 4}}, InvalidInput, "too intricate"),
    "a broken pattern": ({"rank_pattern": {"(": 4}}, InvalidInput, "rank_pattern"),
}


@pytest.mark.parametrize(("change", "error", "named"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_configuration_that_would_answer_otherwise_is_refused(
    folder: Path, change: dict[str, Any], error: type[OneBertError], named: str
) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert_refused(folder, error, named)


Q = "base_model.model.bert.encoder.layer.0.attention.self.query"

TENSORS = {
    "no classifier": ({"base_model.model.classifier.weight": None}, InvalidInput, "classifier.weight"),
    "maps for the classifier in its place": (
        {
            "base_model.model.classifier.weight": None,
            "base_model.model.classifier.lora_A.weight": torch.ones(4, 32),
            "base_model.model.classifier.lora_B.weight": torch.ones(3, 4),
        },
        InvalidInput,
        "classifier",
    ),
    "two values of one part": (
        {"base_model.model.classifier.modules_to_save.bias": torch.ones(3)},
        InvalidInput,
        "two values of one part: base_model.model.classifier.modul",
    ),
    "half a pair": ({f"{Q}.lora_A.weight": None}, InvalidInput, "encoder.layer.0.attention.self.query"),
    "unknown": ({"base_model.model.bert.other": torch.ones(3)}, InvalidInput, "other"),
    "a weight": ({f"{Q}.weight": torch.ones(32, 32)}, InvalidInput, "encoder.layer.0.attention.self.query.weight"),
    "whole numbers": ({f"{Q}.bias": torch.ones(32, dtype=torch.int64)}, InvalidInput, "not floating point"),
    "a bias of another size": ({f"{Q}.bias": torch.ones(31)}, TensorMismatch, "is [31], not [32]"),
    "an empty classifier": ({"base_model.model.classifier.bias": torch.ones(())}, InvalidInput, "classifier.bias"),
    "a magnitude without dora": ({f"{Q}.lora_magnitude_vector": torch.ones(32)}, InvalidInput, "half of DoRA"),
    "a map of another size": ({f"{Q}.lora_A.weight": torch.ones(4, 31)}, TensorMismatch, "is [4, 31], not [4, 32]"),
}


@pytest.mark.parametrize(("change", "error", "named"), TENSORS.values(), ids=TENSORS.keys())
def test_tensors_that_do_not_fit_are_refused(
    folder: Path, change: dict[str, torch.Tensor | None], error: type[OneBertError], named: str
) -> None:
    spoil(folder, change)
    assert_refused(folder, error, named)


def table_of(rows: int) -> torch.Tensor:
    embeddings = base_of("bert").params["embeddings.word_embeddings.weight"]
    return torch.cat([embeddings, torch.zeros(max(0, rows - len(embeddings)), embeddings.shape[1])])[:rows]


def test_a_table_that_peft_saved_whole_is_held_against_the_bases(folder: Path) -> None:
    path, base = folder / "adapter_model.safetensors", base_of("bert")
    plain, tensors = import_adapter(folder, base), load_file(path)
    name, rows = "base_model.model.bert.embeddings.word_embeddings.weight", base.spec.vocab_size
    save_file({**tensors, name: table_of(rows)}, path)
    assert import_adapter(folder, base).digest == plain.digest
    save_file({**tensors, name: table_of(rows + 2)}, path)
    with pytest.raises(TensorMismatch, match=f"has {rows + 2} rows and the base's {rows}: .*no place for added tokens"):
        import_adapter(folder, base)
    save_file({**tensors, name: table_of(rows) + 1e-6}, path)
    with pytest.raises(InvalidInput, match=r"cannot hold what the adapter has for embeddings\.word_embeddings\.weight"):
        import_adapter(folder, base)


def test_a_tokenizer_of_the_adapters_own_is_the_bases_or_is_refused(folder: Path) -> None:
    base, tokenizer = base_of("bert"), AutoTokenizer.from_pretrained(tiny_base("bert"))
    plain = import_adapter(folder, base)
    tokenizer.save_pretrained(folder)
    assert import_adapter(folder, base).digest == plain.digest
    path = folder / "tokenizer.json"
    written = json.loads(path.read_text())
    written["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(written))
    with pytest.raises(InvalidInput, match=r"own tokenizer differs from the base's, .* in its normalizer;"):
        import_adapter(folder, base)
    tokenizer.add_tokens(["<order>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(InvalidInput, match=r"does not fit the base: its tokenizer gives ids up to \d+, its word table"):
        import_adapter(folder, base)


@pytest.mark.parametrize("name", ["adapter_config.json", "config.json"])
def test_files_without_end_are_refused_before_they_are_parsed(folder: Path, name: str) -> None:
    base = base_of("bert")
    (folder / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(MalformedFile, match=rf"^{name} of \S+ cannot be read: it is nested too deeply"):
        import_adapter(folder, base)
    with (folder / name).open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(
        MalformedFile, match=rf"^{name} of \S+ cannot be read: it is not a regular file of at most 64 MiB"
    ):
        import_adapter(folder, base)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(MalformedFile, match=rf"^{name} of \S+ cannot be read: it is not a regular file"):
        import_adapter(folder, base)


def test_a_pickle_is_never_opened(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(InvalidInput, match="pickle"):
        import_adapter(folder, base_of("bert"))


def test_damaged_files_are_named(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(MalformedFile, match=r"^adapter_model\.safetensors"):
        import_adapter(folder, base_of("bert"))
    (folder / "adapter_config.json").write_text('{"r": NaN}')
    with pytest.raises(MalformedFile, match=r"^adapter_config\.json"):
        import_adapter(folder, base_of("bert"))
    (folder / "adapter_config.json").unlink()
    with pytest.raises(InvalidInput, match=r"neither adapter_config\.json"):
        import_adapter(folder, base_of("bert"))
