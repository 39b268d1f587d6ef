"""How a base makes vectors, by files that sentence-transformers has saved: read, kept by an added base, or refused."""

import json
import shutil

import pytest

from bases import tiny_base
from onebert_encoder.adding.adding import add_base
from onebert_encoder.base.base import load_base
from onebert_encoder.base.sentence import Vectors, read_vectors
from sentences import saved_by_sentence_transformers


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentence") / "base"
    saved_by_sentence_transformers(folder, "bert", "mean", normalize=True)
    return folder


def test_an_added_base_makes_the_same_vectors(saved, tmp_path):
    assert load_base(str(saved)).vectors == Vectors("mean", normalized=True, max_length=64)
    add_base(str(saved), out=tmp_path / "own")
    assert load_base(str(tmp_path / "own")).vectors == Vectors("mean", normalized=True, max_length=64)


def changed(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | values))


def listed(folder, *types):
    modules = [{"path": "" if place == 0 else f"{place}_{kind}", "type": kind} for place, kind in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))


POOLING, CUT = "1_Pooling/config.json", "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "modules.json").unlink(), "no modules.json"),
        (lambda f: (f / "modules.json").write_text("{"), "modules.json of base cannot be read"),
        (lambda f: (f / "modules.json").write_text('[{"path": ""}, {"path": ".."}]'), "leads out of the folder"),
        (lambda f: listed(f, "Transformer", "Pooling", "Dense"), "its modules are Transformer, Pooling, Dense"),
        (listed, "its modules are none"),
        (lambda f: (f / POOLING).unlink(), "config.json of 1_Pooling cannot be read"),
        (lambda f: changed(f, POOLING, pooling_mode="max"), "pools by max"),
        (lambda f: changed(f, POOLING, pooling_mode=["mean", "cls"]), "pools by mean and cls"),
        (lambda f: changed(f, POOLING, pooling_mode=[]), "pools by nothing"),
        (lambda f: changed(f, POOLING, pooling_mode={"mean": 1}), "pools by {'mean': 1}"),
        (lambda f: changed(f, CUT, do_lower_case=True), "do_lower_case"),
        (lambda f: (f / CUT).write_text("[1]"), "it is no JSON object"),
    ],
)
def test_files_that_say_something_else_are_refused_and_the_base_still_loads(saved, tmp_path, damage, words):
    shutil.copytree(saved, tmp_path / "base")
    damage(tmp_path / "base")
    assert words in load_base(str(tmp_path / "base")).vectors


@pytest.mark.parametrize(
    ("length", "tokenizers", "used"),
    [(20, 30, 20), (None, 30, 30), (True, 30, 30), (-1, 80, 64), ("9", 10**30, 64), (None, None, 64)],
)
def test_the_longest_text_is_what_the_files_say(saved, tmp_path, length, tokenizers, used):
    shutil.copytree(saved, tmp_path / "base")
    changed(tmp_path / "base", CUT, max_seq_length=length)
    changed(tmp_path / "base", "tokenizer_config.json", model_max_length=tokenizers)
    assert read_vectors(tmp_path / "base", 64).max_length == used
    assert isinstance(read_vectors(tiny_base(), 64), str)
