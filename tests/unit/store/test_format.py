"""The delta file: what is written reads back, equal content is equal bytes, and other writers are understood."""

import hashlib
import json
import re
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tiny_delta
from onebert_store.errors import InvalidInput, NotFinite, TensorMismatch, TooLarge
from onebert_store.file.delta import Delta
from onebert_store.file.format import MAX_FILE_BYTES, dumps, load, loads, save
from onebert_store.file.manifest import parse_manifest

FORMAT_MD = Path(__file__).parents[3] / "adapters_store" / "FORMAT.md"

DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1, max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=4))
    floats = st.floats(-1e4, 1e4, width=16)
    return draw(hnp.arrays(np.float32, shape, elements=floats)).astype(dtype)


@st.composite
def deltas(draw):
    labels = draw(st.lists(text, min_size=2, max_size=5, unique=True))
    manifest = tiny_delta.manifest_dict(
        labels=labels, method=draw(text), training=draw(st.dictionaries(text, json_values, max_size=3))
    )
    if draw(st.booleans()):
        numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-100, 100)
        logits = draw(st.lists(numbers, min_size=len(labels), max_size=len(labels)))
        manifest["golden"] = {"input_ids": [[1, 2, 3]], "logits": [logits]}
    names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
    tensors = draw(st.dictionaries(names.filter(lambda name: name != "__metadata__"), arrays(), max_size=5))
    return Delta(parse_manifest(manifest), tensors)


def same_tensors(first, other):
    return first.keys() == other.keys() and all(
        first[name].dtype == other[name].dtype
        and first[name].shape == other[name].shape
        and first[name].tobytes() == other[name].tobytes()
        for name in first
    )


@given(deltas())
def test_what_is_written_reads_back_and_writes_the_same(delta):
    data = dumps(delta)
    back = loads(data)
    assert back.manifest == delta.manifest
    assert same_tensors(back.tensors, delta.tensors)
    assert dumps(back) == data
    assert back.digest == delta.digest == "sha256:" + hashlib.sha256(data).hexdigest()


@given(deltas())
def test_the_official_library_reads_what_we_write(delta):
    views = dict(safetensors.deserialize(dumps(delta)))
    assert views.keys() == delta.tensors.keys()
    for name, view in views.items():
        assert bytes(view["data"]) == delta.tensors[name].tobytes()
        assert view["shape"] == list(delta.tensors[name].shape)


@given(deltas(), st.randoms(use_true_random=False))
def test_order_and_spacing_do_not_change_the_digest(delta, random):
    names = list(delta.tensors)
    random.shuffle(names)
    code = {dtype: name for name, dtype in zip(("F32", "F16", "BF16"), DTYPES, strict=True)}
    header, body = {}, b""
    for name in names:
        data = delta.tensors[name].tobytes()
        shape = list(delta.tensors[name].shape)
        header[name] = tiny_delta.entry(len(body), len(body) + len(data), shape, code[delta.tensors[name].dtype])
        body += data
    manifest = delta.manifest.model_dump()
    shuffled = {key: manifest[key] for key in random.sample(list(manifest), len(manifest))}
    header["__metadata__"] = {"onebert": json.dumps(shuffled, indent=random.choice([None, 1]))}
    other = loads(tiny_delta.file_bytes(json.dumps(header, indent=2).encode(), body))
    assert dumps(other) == dumps(delta)
    assert other.digest == delta.digest


def test_the_canonical_bytes_are_these():
    tensors = {
        "b": np.array([1, -2], np.float16),
        "a": np.array([[0.5]], np.float16),
        "z": np.array([3], np.float32),
    }
    delta = tiny_delta.make_delta(tensors=tensors, labels=["é", 'q"'], training={"lr": 1e-5, "b": None})
    manifest = (
        '{"base":{"digest":"sha256:' + "ab" * 32 + '","model_type":"bert","name":"tiny"},"format":1,'
        '"labels":["é","q\\""],"max_length":16,"method":"bitfit","pooling":"mean","task_type":"single_label",'
        '"training":{"b":null,"lr":1e-05}}'
    )
    header = (
        '{"__metadata__":{"onebert":"' + manifest.replace("\\", "\\\\").replace('"', '\\"') + '"},'
        '"z":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        '"a":{"dtype":"F16","shape":[1,1],"data_offsets":[4,6]},'
        '"b":{"dtype":"F16","shape":[2],"data_offsets":[6,10]}}'
    ).encode()
    header += b" " * (-len(header) % 8)
    body = struct.pack("<f", 3) + struct.pack("<eee", 0.5, 1, -2)
    assert dumps(delta) == struct.pack("<Q", len(header)) + header + body


def test_an_absent_key_and_its_empty_value_are_the_same_content():
    digest = tiny_delta.make_delta().digest
    assert tiny_delta.make_delta(training={}, golden=None).digest == digest
    assert tiny_delta.make_delta(training={"seed": None}).digest != digest


def test_a_whole_golden_logit_may_be_written_without_a_fraction():
    golden = [{"input_ids": [[1, 2]], "logits": [logits]} for logits in ([1, -2], [1.0, -2.0])]
    assert tiny_delta.make_delta(golden=golden[0]).digest == tiny_delta.make_delta(golden=golden[1]).digest


def test_the_writer_printed_in_format_md_works(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", FORMAT_MD.read_text(), re.DOTALL)
    assert len(block.splitlines()) <= 30
    namespace = {}
    exec(block, namespace)
    namespace["write_delta"](tmp_path / "x", tiny_delta.manifest_dict(), tiny_delta.tensors_for())
    assert load(tmp_path / "x").digest == tiny_delta.make_delta().digest
    assert block == Path(__file__).parents[2].joinpath("foreign_writer.py").read_text()


def test_save_leaves_one_file_readable_by_others(tmp_path):
    delta = tiny_delta.make_delta()
    path = tmp_path / "delta.safetensors"
    path.write_bytes(b"old")
    save(path, delta)
    assert load(path).digest == delta.digest
    assert list(tmp_path.iterdir()) == [path]
    new = tmp_path / "new"
    new.touch()
    assert path.stat().st_mode == new.stat().st_mode


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (np.ones(2), TensorMismatch, "head.bias is float64"),
        (np.ones(2, np.int64), TensorMismatch, "head.bias is int64"),
        (np.array([np.nan, 1], np.float32), NotFinite, "not finite: head.bias"),
        (np.array([1, np.inf], ml_dtypes.bfloat16), NotFinite, "not finite: head.bias"),
        (np.zeros(MAX_FILE_BYTES // 4, np.float32), TooLarge, "at most"),
    ],
    ids=["float64", "int64", "nan", "bfloat16-inf", "too-large"],
)
def test_the_writer_refuses_what_the_reader_would(tmp_path, tensor, error, message):
    delta = tiny_delta.make_delta(tensors=tiny_delta.tensors_for() | {"head.bias": tensor})
    with pytest.raises(error, match=message):
        save(tmp_path / "x", delta)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_a_typed_error_without_its_folder(tmp_path):
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path / "secret")
    assert caught.value.detail == "secret cannot be read: No such file or directory"


def test_an_endless_file_is_refused_after_the_limit():
    with pytest.raises(TooLarge):
        load(Path("/dev/zero"))
