"""Loading a base: what is refused, and what its digest covers."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from bases import FAMILIES, tiny_base
from onebert_encoder.adding.adding import add_base
from onebert_encoder.base.base import DEFAULT_BASE, load_base
from onebert_encoder.base.config import EncoderConfig
from onebert_encoder.base.digest import config_form, differing_parts, tokenizer_form
from onebert_encoder.base.folder import PACKAGED, read_own
from onebert_encoder.base.source import find_base
from onebert_encoder.base.tokenizer import load_tokenizer
from onebert_encoder.compute.kernels.products import load_products
from onebert_store.errors import BaseNotFound, UnsupportedBase


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_base("bert"), tmp_path / "base"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_default_base_is_the_real_minilm() -> None:
    weights = find_base(DEFAULT_BASE) / "model.safetensors"
    expected = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == expected
    assert load_base().spec.digest == "sha256:3c398c3611c0d4f29cd07c5877e7024a913f3fbf0bdfe18311921a7bdb017e47"


def test_the_record_of_the_default_bases_package_is_what_transformers_reads(tmp_path: Path) -> None:
    # In another folder the files are read by transformers, and the digest is computed from them.
    read = load_base(shutil.copytree(find_base(DEFAULT_BASE), tmp_path / "base").as_posix())
    assert read_own(find_base(DEFAULT_BASE)) == PACKAGED
    assert (PACKAGED.digest, PACKAGED.config) == (read.spec.digest, read.config)
    assert load_base().tokenizer.written == read.tokenizer.written


@pytest.mark.skipif(
    load_products("cpu", torch.float32) is None, reason="without a compiler the file's weights are used"
)
def test_packed_weights_are_the_files_without_a_copy() -> None:
    base, weights = load_base(), load_file(find_base(DEFAULT_BASE) / "model.safetensors")
    packed = {name for name in base.spec.modules if not name.startswith("pooler")}
    held = {name for name in base.params if base.params[name] is base.params[name]}
    assert base.params.keys() - held == {f"{name}.weight" for name in packed}
    for name, value in base.params.items():
        assert torch.equal(value.view(torch.int32), weights[name].view(torch.int32))


@pytest.mark.skipif(load_products("cpu", torch.int8) is None, reason="int8 needs a compiler")
def test_files_that_change_behind_a_loaded_base_change_no_answer(tmp_path: Path) -> None:
    """In a process of its own: it died of SIGBUS. Of an added base, and of a checkpoint in parts."""
    added, parts = tmp_path / "added", tmp_path / "parts"
    add_base(str(tiny_base("bert")), "tiny", added)
    shutil.copytree(tiny_base("bert"), parts)
    (parts / "model.safetensors").unlink()
    AutoModel.from_pretrained(tiny_base("bert")).save_pretrained(parts, max_shard_size="20KB")
    command = [sys.executable, "-c", ANSWERING, added, "float32", parts, "int8"]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    answers = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=180).stdout.split()
    assert len(answers) == 6
    assert len(set(answers[:3])) == len(set(answers[3:])) == 1


ANSWERING = """
import hashlib, os, sys, torch
from pathlib import Path
from bases import far_row, random_texts
from batches import logits_of, packed
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.rows import stack_rows

def answer(base):
    rows = [far_row(base, kind, pooling) for kind in ("everything", "lora-xs") for pooling in ("mean", "pooler")]
    texts = random_texts([40] * 40)
    with torch.inference_mode():
        batch = packed(base, texts, [number % 4 for number in range(40)])
        logits = torch.cat([each.flatten() for each in logits_of(base, stack_rows(base, rows), batch)])
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()

for folder, dtype in zip(map(Path, sys.argv[1::2]), sys.argv[2::2]):
    base = load_base(str(folder), dtype=getattr(torch, dtype))
    answer(base)  # The singular directions stay in memory, in another layout for the larger rank.
    print(answer(base))
    for path in folder.iterdir():
        with path.open("r+b") as file:
            file.write(b"?" * path.stat().st_size)
    print(answer(base))
    for path in folder.iterdir():
        os.truncate(path, 8)
    print(answer(base))
"""


def changed(**changes: object) -> Callable[[Path], None]:
    return lambda folder: edit_config(folder, **changes)


def written(name: str, content: bytes | str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def huge(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (64 << 20) + 1)


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()


def with_an_unseen_word(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["unseen"])
    tokenizer.save_pretrained(folder)


def without_a_parameter(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, folder / "model.safetensors")


def with_rows(name: str, rows: int) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        save_file({**weights, name: weights[name][:rows].clone()}, folder / "model.safetensors")

    return cut


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def indexed(index: str) -> Callable[[Path], None]:
    """A checkpoint in parts whose index is damaged."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(index)

    return damage


YARN = {
    "full_attention": {"rope_type": "yarn", "rope_theta": 160000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
WHOLE = "in its config.json is not a whole number"


@pytest.mark.parametrize(
    ("family", "damage", "why"),
    [
        ("bert", changed(model_type="gpt2"), "supported: bert, roberta"),
        ("bert", changed(position_embedding_type="relative_key"), "only absolute ones are supported"),
        ("bert", changed(intermediate_size=48), "has shape [64], its config.json says [48]"),
        ("bert", changed(hidden_size="x"), f'hidden_size {WHOLE} of 1 to 2147483647: "x"'),
        ("distilbert", changed(n_layers=0), f"n_layers {WHOLE} of 1 to 1000: 0"),
        ("bert", changed(num_hidden_layers=10**9), f"num_hidden_layers {WHOLE} of 1 to"),
        ("bert", changed(num_attention_heads=5), "its hidden size is not a multiple of its number of heads"),
        ("bert", changed(hidden_act="unheard_of"), "its activation 'unheard_of' is not one of gelu, "),
        (
            "bert",
            changed(layer_norm_eps="tiny"),
            "cannot be read; transformers says: Field 'layer_norm_eps' expected float, got str",
        ),
        ("bert", changed(model_type=["bert"]), "no readable config.json with a model_type"),
        (
            "modernbert",
            changed(attention_bias=True),
            "attention_bias in its config.json is True; only False is supported",
        ),
        ("modernbert", changed(norm_bias=True), "norm_bias in its config.json is True; only False is supported"),
        ("modernbert", changed(rope_parameters=YARN), "its rotary positions are scaled (yarn); only unscaled ones are"),
        ("modernbert", changed(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "positions are scaled (dynamic)"),
        ("modernbert", changed(local_attention=1), "a token of its local attention reads no other"),
        ("modernbert", changed(layer_types=["full_attention"]), "its config.json cannot be read; transformers says: "),
        ("modernbert", with_rows("layers.1.attn.Wqkv.weight", 95), "Wqkv.weight has 95 rows for 3 maps"),
        ("nomic_bert", changed(rope_parameters={"rope_theta": "far"}), "its config.json cannot be read"),
        ("eurobert", changed(num_key_value_heads=2), "its queries have 4 heads and its keys 2; only equal numbers"),
        ("gte", changed(num_attention_heads=32), "its heads have an odd width, and rotary positions turn pairs"),
        ("gte", changed(rope_parameters={"rope_type": "default", "rope_theta": -1.0}), "a base or a window of its rot"),
        ("modernbert", changed(max_position_embeddings=2**31 - 1), f"max_position_embeddings {WHOLE} of 1 to 1048576"),
        ("deberta-v2", changed(position_buckets=1), "it has 1 buckets of relative positions, not 2 or more"),
        ("bert", changed(layer_norm_eps=-1.0), "the epsilon of its LayerNorms is -1.0"),
        ("ernie", changed(use_task_id=True), "use_task_id in its config.json is True; only False is supported"),
        ("deberta-v2", changed(conv_kernel_size=3), "conv_kernel_size in its config.json is 3; only 0 is supported"),
        ("deberta-v2", changed(share_att_key=None), "share_att_key in its config.json is None; only True is"),
        ("deberta-v2", changed(pos_att_type="c2p"), "pos_att_type in its config.json is ['c2p']; only ['c2p', 'p2c']"),
        ("deberta-v2", changed(position_biased_input=True), "position_biased_input in its config.json is True; only"),
        ("deberta-v2", changed(model_type="deberta"), "architecture 'deberta' is not supported; supported: bert, "),
        ("bert", changed(is_decoder=True), "it is a decoder, in which a token reads only those before it"),
        ("roberta", changed(pad_token_id=-5), "its pad_token_id -5 leaves no positions for tokens"),
        ("bert", written("config.json", DEEP), "config.json of base cannot be read: it is nested too deeply"),
        ("bert", written("config.json", '{"a":' * 40 + "1" + "}" * 40), "nested deeper than 32"),
        ("bert", huge("config.json"), "it is not a regular file of at most 64 MiB"),
        ("bert", written("config.json", "[]"), "config.json of base cannot be read: it is no JSON object"),
        ("bert", written("tokenizer.json", DEEP), "its tokenizer cannot be read: "),
        ("bert", huge("tokenizer.json"), "its tokenizer cannot be read: tokenizer.json has over 64 MiB"),
        ("bert", without_tokenizer, "it has no tokenizer"),
        ("bert", with_an_unseen_word, "its word table has"),
        ("bert", pickled, "no model.safetensors; other weight formats are not read"),
        ("bert", written("model.safetensors", b"\xff" * 100), "its weights cannot be read"),
        ("bert", without_a_parameter, "encoder.layer.1.output.dense.bias among them"),
        *(
            ("bert", indexed(index), "no model.safetensors")
            for index in ('{"weight_map": 5}', '{"weight_map": {"a": ["b"]}}', '{"a":' * 10_000)
        ),
    ],
)
def test_a_folder_that_makes_no_base_is_refused(
    tmp_path: Path, family: str, damage: Callable[[Path], object], why: str
) -> None:
    folder = Path(shutil.copytree(tiny_base(family), tmp_path / "base"))
    damage(folder)
    with pytest.raises(UnsupportedBase, match=rf"^base [^\n]*{re.escape(why)}[^\n]*$"):
        load_base(str(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 10**9},
        {"return_dict": "None", "chunk_size_feed_forward": {"a": "b"}, "output_attentions": 5, "dtype": []},
        {"id2label": ["good"], "label2id": 5, "problem_type": {}, "architectures": "Bert"},
    ],
)
def test_entries_of_a_configuration_that_are_not_used_change_nothing(folder: Path, changes: dict[str, object]) -> None:
    plain = load_base(str(folder)).spec.digest
    edit_config(folder, **changes)
    assert load_base(str(folder)).spec.digest == plain


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"])
def test_a_pipe_in_a_folder_is_refused_before_it_is_opened(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    for load in (load_base, load_tokenizer):
        with pytest.raises(UnsupportedBase, match=rf"^[^\n]*{name} is a pipe, a socket or a device[^\n]*$"):
            load(str(folder))


def test_two_tokenizers_differ_in_named_parts() -> None:
    bert, roberta = (load_tokenizer(str(tiny_base(family)))[0].written for family in ("bert", "roberta"))
    assert differing_parts(bert, bert) == ""
    assert differing_parts(bert, roberta).startswith("model, normalizer, ")
    cased = json.loads(bert)
    cased["normalizer"]["lowercase"] = False
    cased["padding"] = {"strategy": "BatchLongest"}
    assert differing_parts(bert, json.dumps(cased)) == "normalizer"


def test_a_sharded_checkpoint_is_the_same_base(folder: Path) -> None:
    whole = load_base(str(folder)).spec.digest
    model = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    (folder / "model_O2.safetensors").write_bytes(b"an export that nobody asked for")
    assert load_base(str(folder)).spec.digest == whole
    next(folder.glob("model-*-of-*.safetensors")).unlink()
    with pytest.raises(UnsupportedBase, match=r"no model\.safetensors"):
        load_base(str(folder))


def test_a_cache_that_holds_only_a_part_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds only the configuration does not keep the default base from being loaded."""
    snapshot = tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "bert"}')
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert (find_base(DEFAULT_BASE) / "model.safetensors").is_file()


def test_a_name_that_is_nowhere_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BaseNotFound, match="not a folder, not in the Hugging Face cache"):
        load_base("nobody/has-this-model")


def test_checkpoints_with_a_head_and_old_layer_norm_names_load(folder: Path) -> None:
    plain = load_base(str(folder))
    weights = load_file(folder / "model.safetensors")
    renamed = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    save_file({**renamed, "classifier.weight": torch.zeros(2, 32)}, folder / "model.safetensors")
    assert load_base(str(folder)).spec.digest == plain.spec.digest


def test_the_digest_depends_on_the_family_and_not_on_the_dtype() -> None:
    exact, rounded = (
        [load_base(str(tiny_base(family)), dtype=dtype).spec.digest for family in FAMILIES]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert exact == rounded
    assert len({*exact}) == len(FAMILIES)


def test_a_configuration_of_an_earlier_transformers_is_the_same_base(tmp_path: Path) -> None:
    """The first ModernBERTs on the Hub say how often a layer attends globally, and each θ by itself."""
    folder = Path(shutil.copytree(tiny_base("modernbert"), tmp_path / "base"))
    plain = load_base(str(folder)).spec.digest
    raw = json.loads((folder / "config.json").read_text())
    for key in ("layer_types", "rope_parameters"):
        del raw[key]
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    digests = []
    for more in (old, {**old, "local_rope_theta": 160000.0}, {**old, "local_attention": 64}):
        (folder / "config.json").write_text(json.dumps({**raw, **more}))
        digests.append(load_base(str(folder)).spec.digest)
    assert digests[0] == plain
    assert len(set(digests)) == 3


def test_a_checkpoint_with_transformers_own_names_is_the_same_base(tmp_path: Path) -> None:
    """By default transformers writes gte and nomic-bert with the names of their authors' code."""
    for family in ("gte", "nomic_bert"):
        folder = tmp_path / family
        shutil.copytree(tiny_base(family), folder)
        plain = load_base(str(folder)).spec.digest
        weights = load_file(folder / "model.safetensors")
        parameters = dict(AutoModel.from_pretrained(folder).named_parameters())
        assert weights.keys() != parameters.keys()
        save_file({name: value.detach() for name, value in parameters.items()}, folder / "model.safetensors")
        assert load_base(str(folder)).spec.digest == plain


def test_the_digest_covers_weights_tokenizer_and_configuration(folder: Path) -> None:
    digests = {load_base(str(folder)).spec.digest}
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.weight"][0, 0] += 1e-3
    save_file(weights, folder / "model.safetensors")
    digests.add(load_base(str(folder)).spec.digest)
    edit_config(folder, layer_norm_eps=1e-5)
    digests.add(load_base(str(folder)).spec.digest)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["good"], vocab["bad"] = vocab["bad"], vocab["good"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    digests.add(load_base(str(folder)).spec.digest)
    assert len(digests) == 4


def test_the_digest_ignores_what_changes_no_answer(folder: Path) -> None:
    before = load_base(str(folder)).spec.digest
    edit_config(folder, hidden_dropout_prob=0.3, use_cache=False)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load_base(str(folder)).spec.digest == before


def test_a_field_added_later_changes_no_digest_until_it_is_used(folder: Path) -> None:
    @dataclass(frozen=True)
    class Grown(EncoderConfig):
        local_window: int = 0

    config = load_base(str(folder)).config
    assert config_form(Grown(**vars(config))) == config_form(config)
    assert config_form(Grown(**vars(config), local_window=128)) != config_form(config)


def test_the_tokenizers_library_may_write_the_same_tokenizer_another_way() -> None:
    """Releases before 0.20 wrote merges as texts; later releases add keys, such as `ignore_merges`."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    now = {"version": "1.0", "truncation": None, "model": model}
    older = {**now, "model": {**model, "merges": ["a b"]}}
    newer = {**now, "shiny": None, "model": {**model, "sparkling": False}}
    forms = [tokenizer_form(json.dumps(written)) for written in (now, older, newer)]
    assert forms[0] == forms[1] == forms[2]
    assert tokenizer_form(json.dumps({**now, "model": {**model, "sparkling": True}})) != forms[0]
    assert tokenizer_form(json.dumps({**now, "model": {**model, "merges": []}})) != forms[0]
