"""A ModernBERT's deltas, whose maps are parts of its checkpoints' maps, go to PEFT and to a checkpoint, and back."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from peft import IA3Config, LoraConfig, PeftModel

from bases import tiny_base
from onebert_encoder.maths.fold import to_tensors
from onebert_store.file.delta import Delta
from onebert_training.interop.heads import split_head
from onebert_training.interop.merged import merge, write_checkpoint
from onebert_training.interop.peft_export import export_adapter
from onebert_training.interop.peft_import import import_adapter
from peft_models import assert_equal_logits, base_of, delta_logits, model_logits, random_adapter, texts

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

HEAD = {"task_type": "SEQ_CLS", "modules_to_save": ["head", "classifier"]}
MODERN, EURO = "modernbert", {"task_type": "SEQ_CLS", "modules_to_save": ["dense", "classifier"]}
PROJECTIONS = ["q_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj"]
ADAPTERS = {
    "lora": (MODERN, "cls", LoraConfig(**HEAD, r=4, lora_alpha=16, target_modules=["Wqkv", "Wo", "Wi"])),
    "lora and gains, of the mean": (
        MODERN,
        "mean",
        LoraConfig(**HEAD | {"modules_to_save": ["head", "classifier", "mlp_norm"]}, r=4, target_modules=["Wi"]),
    ),
    "ia3": (
        MODERN,
        "cls",
        IA3Config(**HEAD, target_modules=["attn.Wo", "mlp.Wo"], feedforward_modules=["mlp.Wo"]),
    ),
    # Their classes split what their checkpoints have in one map.
    "lora, gte": ("gte", "none", LoraConfig(task_type="TOKEN_CLS", r=4, target_modules=PROJECTIONS)),
    "lora, nomic_bert": ("nomic_bert", "none", LoraConfig(task_type="TOKEN_CLS", r=4, target_modules=PROJECTIONS)),
    "lora, eurobert": ("eurobert", "mean", LoraConfig(**EURO, r=4, target_modules=PROJECTIONS)),
}


def imported(family: str, pooling: str, config: Any, folder: Path) -> tuple[Any, Delta]:
    """A PEFT model whose head reads by a pooling, and its delta."""
    adapted = random_adapter(family, config, folder)
    model = adapted.get_base_model()
    # One family's class reads its configuration when it is made, the other's at every pass.
    model.config.classifier_pooling = model.classifier_pooling = pooling
    return adapted, import_adapter(folder, base_of(family), base_config={"classifier_pooling": pooling})


@pytest.mark.parametrize(("family", "pooling", "config"), ADAPTERS.values(), ids=ADAPTERS)
def test_a_delta_goes_to_peft_and_to_a_checkpoint(family: str, pooling: str, config: Any, tmp_path: Path) -> None:
    base, (adapted, delta) = base_of(family), imported(family, pooling, config, tmp_path / "first")
    tokens = texts()
    ours = delta_logits(base, delta, tokens)
    assert delta.manifest.pooling == pooling
    assert_equal_logits(ours, model_logits(adapted, tokens))

    written = export_adapter(tmp_path / "again", delta, base, str(tiny_base(family)))
    task_config = transformers.AutoConfig.from_pretrained(tmp_path / "again" / "task_config.json")
    auto_class = getattr(transformers, written["loads_with"])
    plain = auto_class.from_pretrained(tiny_base(family), config=task_config)
    assert_equal_logits(ours, model_logits(PeftModel.from_pretrained(plain, tmp_path / "again").eval(), tokens))
    # By the folder's own configuration.
    again = import_adapter(tmp_path / "again", base)
    assert again.tensors.keys() == delta.tensors.keys()
    assert_equal_logits(delta_logits(base, again, tokens), ours)

    encoder, head = split_head(to_tensors(delta, base))
    params = merge(base, encoder)
    named = write_checkpoint(tmp_path / "whole", str(tiny_base(family)), params, head, delta.manifest)
    model, info = getattr(transformers, named).from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys"))
    assert_equal_logits(ours, model_logits(model.eval(), tokens))


def test_pairs_of_some_parts_with_maps_of_their_own_are_joined(tmp_path: Path) -> None:
    base, (_, delta) = base_of("modernbert"), imported(*ADAPTERS["lora"], tmp_path / "first")
    tensors = {name: tensor for name, tensor in delta.tensors.items() if "layers.1.attn.Wqkv.v" not in name}
    of_key = "lora_A.layers.1.attn.Wqkv.k"
    some = Delta(delta.manifest, {**tensors, of_key: 2 * tensors[of_key]})
    written = export_adapter(tmp_path / "again", some, base, str(tiny_base("modernbert")))
    config = transformers.AutoConfig.from_pretrained(tmp_path / "again" / "task_config.json")
    plain = getattr(transformers, written["loads_with"]).from_pretrained(tiny_base("modernbert"), config=config)
    model = PeftModel.from_pretrained(plain, tmp_path / "again").eval()
    assert_equal_logits(delta_logits(base, some, texts()), model_logits(model, texts()))
