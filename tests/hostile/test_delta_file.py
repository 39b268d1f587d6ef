"""Hostile delta files: each attack is refused by a typed error that names the offense."""

import json
import pickle
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

import tiny_delta
from onebert_store.command.inspection import inspect_file
from onebert_store.errors import InvalidManifest, MalformedFile, NotFinite, OneBertError, TooLarge
from onebert_store.file.format import MAX_FILE_BYTES, MAX_HEADER_BYTES, MAX_TENSORS, dumps, loads
from tiny_delta import entry, file_bytes, manifest_dict, metadata

GOOD = dumps(tiny_delta.make_delta())


def with_header(body=b"\0" * 8, **entries):
    """A file of a valid manifest and these tensor entries."""
    return file_bytes({"__metadata__": metadata(), **entries}, body)


def with_raw(tensors, body=b"\0" * 8):
    """A file whose header is written as text, for what a dict cannot say."""
    return file_bytes(f'{{"__metadata__":{json.dumps(metadata())},{tensors}}}'.encode(), body)


def with_manifest(text):
    """A file with this manifest text (or value) and one tensor."""
    value = text if isinstance(text, str) else json.dumps(text)
    return file_bytes({"__metadata__": {"onebert": value}, "a": entry(0, 8)}, b"\0" * 8)


def raw_entry(**texts):
    """The text of a header entry with some values replaced by raw JSON text."""
    parts = {"dtype": '"F32"', "shape": "[2]", "data_offsets": "[0,8]"} | texts
    return '"a":{' + ",".join(f'"{key}":{value}' for key, value in parts.items()) + "}"


HEADER = {
    "empty": (b"", "ends inside the 8 bytes"),
    "length-0": (file_bytes(b""), "does not start with"),
    "length-past-end": (GOOD[: len(GOOD) // 8], r"cut short: its header claims \d+ bytes, \d+ are left$"),
    "length-2**63": (file_bytes(b"{}", size=2**63), "^this is no delta file, or it was cut short$"),
    "length-one-short": (file_bytes(b"{}", size=1), "header: not JSON"),
    "not-json": (file_bytes(b"{nope"), "header: not JSON at character 1"),
    "json-list": (file_bytes(b"[]"), "does not start with"),
    "not-utf8": (file_bytes(b'{"\xff":1}'), "header: byte 2 is not UTF-8"),
    "byte-order-mark": (file_bytes(b"\xef\xbb\xbf{}"), "does not start with"),
    "nesting-bomb": (file_bytes(b'{"a":' + b"[" * 100_000), "header: it is nested too deeply"),
    "nan-literal": (with_raw(raw_entry(shape="[NaN]")), "header: NaN is not JSON"),
    "overflowing-float": (with_raw(raw_entry(shape="[1e999]")), "header: a number is too large"),
    "giant-integer": (with_raw(raw_entry(shape="[" + "9" * 5000 + "]")), "header: an integer does not fit"),
    "pickle": (pickle.dumps({"a": 1}, protocol=0) * 9, "or it was cut short$"),
    "git-lfs-pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "it is a pointer of Git LFS, and not the file",
    ),
    "zip-tail": (GOOD + b"PK\x05\x06" + b"\0" * 18, "the tensors cover"),
}

METADATA = {
    "no-metadata": (file_bytes({"a": entry(0, 8)}, b"\0" * 8), "__metadata__ must be an object"),
    "metadata-is-a-tensor": (file_bytes({"__metadata__": entry(0, 8)}, b"\0" * 8), "__metadata__ must be"),
    "metadata-empty": (file_bytes({"__metadata__": {}}), "the one key 'onebert'"),
    "metadata-extra-key": (file_bytes({"__metadata__": metadata() | {"format": "pt"}}), "the one key 'onebert'"),
    "manifest-not-a-string": (file_bytes({"__metadata__": {"onebert": {}}}), "must be a string of JSON"),
}

DUPLICATES = {
    "tensor-twice-equal": (with_raw(f"{raw_entry()},{raw_entry()}"), "the key 'a' appears twice"),
    "metadata-twice": (with_raw(f'{raw_entry()},"__metadata__":{{}}'), "the key '__metadata__' appears twice"),
    "escaped-twin": (with_raw(raw_entry() + "," + raw_entry().replace('"a"', '"\\u0061"')), "'a' appears twice"),
    "long-name-is-cut": (with_raw(f'"{"x" * 9999}":1,"{"x" * 9999}":1'), r"the key 'x{79}…' appears twice$"),
}

ENTRIES = {
    "entry-null": (with_header(a=None), "a must have exactly"),
    "entry-extra-key": (with_header(a=entry(0, 8) | {"x": 1}), "a must have exactly"),
    "entry-missing-shape": (with_header(a={"dtype": "F32", "data_offsets": [0, 8]}), "a must have exactly"),
    "dtype-int64": (with_header(a=entry(0, 8, [1], "I64")), "dtype must be one of F32, F16, BF16"),
    "dtype-fp8": (with_header(a=entry(0, 8, [8], "F8_E4M3")), "dtype must be"),
    "shape-scalar": (with_header(a=entry(0, 4, []), body=b"\0" * 4), "shape must be"),
    "shape-rank-3": (with_header(a=entry(0, 8, [1, 1, 2])), "shape must be"),
    "shape-float": (with_header(a=entry(0, 8, [2.0])), "shape must be"),
    "shape-bool": (with_header(a=entry(0, 4, [True]), body=b"\0" * 4), "shape must be"),
    "shape-negative": (with_header(a=entry(0, 8, [-1, -2])), "shape must be"),
    "shape-zero": (with_header(a=entry(0, 0, [0]), body=b""), "shape must be"),
    "shape-zero-hides-huge": (with_header(a=entry(0, 0, [2**62, 0]), body=b""), "shape must be"),
    "shape-10-gigabytes": (with_header(a=entry(0, 8, [50_000, 50_000])), "need 10000000000 bytes, data_offsets span 8"),
    "shape-overflows-64-bit": (with_header(a=entry(0, 8, [2**31 - 1, 2**31 - 1])), "need 18446744056529682436 bytes"),
    "half-precision-span": (with_header(a=entry(0, 8, [2], "F16")), "need 4 bytes, data_offsets span 8"),
    "offsets-three": (with_header(a=entry(0, 8) | {"data_offsets": [0, 4, 8]}), "data_offsets must be"),
    "offsets-bool": (with_header(a=entry(0, 8) | {"data_offsets": [False, 8]}), "data_offsets must be"),
    "offsets-negative": (with_header(a=entry(0, 8) | {"data_offsets": [-8, 0]}), "data_offsets must be"),
    "name-empty": (with_header(**{"": entry(0, 8)}), "a tensor name is"),
    "name-cyrillic": (with_header(**{"\u0430": entry(0, 8)}), "a tensor name is"),
    "name-right-to-left": (with_header(**{"a\u202e": entry(0, 8)}), r"a tensor name is .*: a\?$"),
    "name-surrogate": (with_raw(raw_entry().replace('"a"', '"\\ud800"')), r"a tensor name is .*: \?$"),
    "name-257": (with_header(**{"n" * 257: entry(0, 8)}), r"a tensor name is .*: n{79}…$"),
}

LAYOUT = {
    "no-tensors-but-a-body": (with_header(), "the tensors cover 0 bytes, the body has 8"),
    "hole-at-start": (with_header(a=entry(4, 8)), "a hole between the header and a"),
    "hole": (with_header(a=entry(0, 4), b=entry(8, 12), body=b"\0" * 12), "a hole between a and b"),
    "overlap": (with_header(a=entry(0, 8), b=entry(4, 8)), "an overlap of a and b"),
    "trailing-byte": (with_header(a=entry(0, 8), body=b"\0" * 9), "the tensors cover 8 bytes, the body has 9"),
    "past-end": (with_header(a=entry(0, 12)), "the tensors cover 12 bytes, the body has 8"),
}

MALFORMED = HEADER | METADATA | DUPLICATES | ENTRIES | LAYOUT

GOOD_TEXT = json.dumps(manifest_dict())


def deciding(task_type="single_label", window=None, **decision):
    """A manifest of format 2."""
    labels = {"labels": ["start", "end"]} if task_type == "span" else {}
    pooling = {"pooling": "none"} if task_type in ("token", "span") else {}
    if window is not None:
        decision["window"] = {"tokens": 8, "overlap": 2, "reduction": "max"} | window
    return manifest_dict(format=2, task_type=task_type, decision=decision, **labels, **pooling)


DECISIONS = {
    "decision-empty": (deciding(), "decision: a decision says something"),
    "decision-nothing": (deciding(activation=None), "decision: a decision says something"),
    "decision-unknown-key": (deciding(threshold=0.5), "decision.threshold: Extra inputs"),
    "activation-unknown": (deciding(activation="relu"), "decision.activation"),
    "activation-of-a-regression": (deciding("regression", activation="none"), "decision.activation: a regression"),
    "activation-of-tokens": (deciding("token", activation="sigmoid"), "a token task has softmax or none"),
    "temperature-0": (deciding(temperature=0.0), "decision.temperature"),
    "temperature-huge": (deciding(temperature=1e300), "decision.temperature"),
    "temperature-infinite": (json.dumps(deciding(temperature=2)).replace(": 2}", ": 1e999}"), "a number is too large"),
    "temperature-true": (deciding(temperature=True), "decision.temperature"),
    "temperature-for-nothing": (deciding(temperature=2.0, activation="none"), "there is no activation"),
    "thresholds-stranger": (deciding(thresholds={"maybe": 0.5}), "a key is not a label"),
    "thresholds-over-1": (deciding(thresholds={"yes": 1.5}), "a value is not a probability"),
    "thresholds-short": (deciding(thresholds={"no": 0.5}, positives=["yes"]), "a positive label has no threshold"),
    "thresholds-of-tokens": (deciding("token", thresholds={"yes": 0.5}), "the labels of a token task have none"),
    "positives-all": (deciding(positives=["yes", "no"]), "one label of a single_label task is not positive"),
    "positives-stranger": (deciding(positives=["maybe"]), "an entry is not a label"),
    "positives-of-spans": (deciding("span", positives=["start"]), "a span task has no labels"),
    "abstain-empty": (deciding(abstain={}), "either below or energy"),
    "abstain-of-a-regression": (deciding("regression", abstain={"below": 0.5}), "a regression task has no rule"),
    "abstain-energy-of-spans": (deciding("span", abstain={"energy": 0.5}), "a span task has no rule by energy"),
    "abstain-below-a-logit": (deciding(activation="none", abstain={"below": 0.5}), "below is a probability"),
    "window-7": (deciding(window={"tokens": 7}), "decision.window.tokens"),
    "window-over-max-length": (deciding(window={"tokens": 17}), "its tokens are over max_length 16"),
    "window-stands-still": (deciding(window={"overlap": 5}), "overlap is at most half"),
    "window-union-of-texts": (deciding(window={"reduction": "union"}), "a single_label task is reduced by max or mean"),
    "cut-of-no-rule": (deciding(cut="tail"), "decision.cut"),
    "cut-of-tokens": (deciding("token", cut="ends"), "cut: a token task has head"),
    "cut-with-a-window": (deciding(cut="head", window={}), "a task with a window cuts nothing"),
}

MANIFESTS = {
    "not-json": ("{'format': 1}", "not JSON at character 1"),
    "list": ("[]", "manifest: Input should be"),
    "byte-order-mark": ("\ufeff" + GOOD_TEXT, "byte order mark"),
    "nesting-bomb": ("[" * 100_000, "nested too deeply"),
    "nested-33": (manifest_dict(training={"a": json.loads("[" * 40 + "]" * 40)}), "training: nested deeper than 32"),
    "duplicate-key": (GOOD_TEXT[:-1] + ',"format":1}', "the key 'format' appears twice"),
    "nan": (manifest_dict(training={"a": float("nan")}), "NaN is not JSON"),
    "giant-integer": (GOOD_TEXT[:-1] + ',"training":{"a":' + "9" * 5000 + "}}", "an integer does not fit 64 bits"),
    "surrogate-escape": (manifest_dict(training={"a": "\ud800"}), "training: a text has half a surrogate pair"),
    "surrogate-label": (manifest_dict(labels=["a", "\udc00"]), "labels.1"),
    "unknown-key": (manifest_dict(extra=1), "extra: Extra inputs are not permitted"),
    "unknown-key-cut": (manifest_dict(**{"\x1b" + "k" * 9999: 1}), r"^\?k{78}…: Extra inputs"),
    "format-4": (manifest_dict(format=4), "format"),
    "format-3-without-a-head": (manifest_dict(format=3), "format: it is 3 with a head or a reference, else 2 with"),
    "format-2-for-nothing": (manifest_dict(format=2), "2 with a decision, else 1"),
    "head-of-pairs": (
        manifest_dict(format=3, head={"activation": "relu"}, pooling="siamese"),
        "head: a task with pooling siamese has no layer before its classifier",
    ),
    "missing-labels": ({k: v for k, v in manifest_dict().items() if k != "labels"}, "labels: Field required"),
    "one-label": (manifest_dict(labels=["a"]), "at least two labels"),
    "twin-labels": (manifest_dict(labels=["a", "a"]), "labels are not distinct"),
    "label-control": (manifest_dict(labels=["a", "b\x1b[31m"]), "labels.1"),
    "label-line-separator": (manifest_dict(labels=["a", "b\u2028"]), "labels.1"),
    "label-257": (manifest_dict(labels=["a", "b" * 257]), "labels.1"),
    "labels-4097": (manifest_dict(labels=[str(i) for i in range(4097)]), "labels: .*at most 4096"),
    "task-type-unknown": (manifest_dict(task_type="ranking"), "task_type"),
    "token-pooled": (manifest_dict(task_type="token"), "a token task has pooling none"),
    "span-pooled": (manifest_dict(task_type="span", labels=["start", "end"]), "a span task has pooling none"),
    "span-labels": (manifest_dict(task_type="span", pooling="none", labels=["end", "start"]), "start and end"),
    "pooling-none": (manifest_dict(pooling="none"), "a single_label task has a pooling"),
    "max-length-float": (manifest_dict(max_length=16.0), "max_length"),
    "max-length-2": (manifest_dict(max_length=2), "max_length"),
    "digest-short": (manifest_dict(base={"name": "t", "model_type": "b", "digest": "sha256:0"}), "base.digest"),
    "digest-newline": (
        manifest_dict(base={"name": "t", "model_type": "b", "digest": tiny_delta.BASE_DIGEST + "\n"}),
        "base.digest",
    ),
    "golden-counts": (manifest_dict(golden={"input_ids": [[1], [1]], "logits": [[0.0, 0.0]]}), "golden"),
    "golden-width": (manifest_dict(golden={"input_ids": [[1]], "logits": [[0.0]]}), "one number per label"),
    "golden-not-per-token": (
        manifest_dict(task_type="token", pooling="none", golden={"input_ids": [[1, 2]], "logits": [[0.0, 0.0]]}),
        "one number per token and label",
    ),
    "golden-negative": (manifest_dict(golden={"input_ids": [[-1]], "logits": [[0.0, 0.0]]}), "golden.input_ids"),
    "golden-513": (manifest_dict(golden={"input_ids": [[1] * 513], "logits": [[0.0, 0.0]]}), "golden"),
    **DECISIONS,
    "golden-infinite": (
        json.dumps(manifest_dict(golden={"input_ids": [[1]], "logits": [[0.25, 0.0]]})).replace("0.25", "1e999"),
        "a number is too large",
    ),
}


@pytest.mark.parametrize(("data", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_files_are_refused_by_name(data, message):
    with pytest.raises(MalformedFile, match=message) as caught:
        loads(data)
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) < 300


@pytest.mark.parametrize(("manifest", "message"), MANIFESTS.values(), ids=MANIFESTS.keys())
def test_invalid_manifests_are_refused_by_name(manifest, message):
    with pytest.raises(InvalidManifest, match=message) as caught:
        loads(with_manifest(manifest))
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) < 300


def test_the_building_blocks_of_the_attacks_are_valid():
    assert set(loads(with_header(a=entry(0, 8))).tensors) == {"a"}
    assert set(loads(with_raw(raw_entry())).tensors) == {"a"}
    assert set(loads(with_manifest(manifest_dict())).tensors) == {"a"}


def test_a_file_cut_at_any_byte_is_refused():
    for length in range(len(GOOD)):
        with pytest.raises(MalformedFile):
            loads(GOOD[:length])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("dtype", "code"), [("<f4", "F32"), ("<f2", "F16")])
def test_numbers_that_are_not_finite_are_refused(bad, dtype, code):
    body = np.array([1, bad], dtype).tobytes()
    with pytest.raises(NotFinite, match=r"^not finite: weird$"):
        loads(with_header(weird=entry(0, len(body), [2], code), body=body))


def test_bfloat16_infinity_is_refused():
    with pytest.raises(NotFinite, match=r"^not finite: weird$"):
        loads(with_header(weird=entry(0, 4, [2], "BF16"), body=b"\0\0\x80\x7f"))


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * (MAX_FILE_BYTES + 1),
        file_bytes(b"{" + b" " * MAX_HEADER_BYTES),
        with_header(
            **{f"t{i}": entry(4 * i, 4 * i + 4) for i in range(MAX_TENSORS + 1)}, body=b"\0" * 4 * (MAX_TENSORS + 1)
        ),
    ],
    ids=["file", "header", "tensors"],
)
def test_what_is_over_a_limit_is_too_large(data):
    with pytest.raises(TooLarge):
        loads(data)


@pytest.mark.parametrize("name", ["length-2**63", "shape-10-gigabytes", "shape-overflows-64-bit", "past-end"])
def test_a_claim_allocates_nothing(name):
    data, _ = MALFORMED[name]
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFile):
            loads(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("out", "r", "columns"),
    [(2**21, 1, 2**21), (1, 2**21, 1), (1300, 1300, 1300)],
)
def test_describing_a_file_multiplies_no_matrices(tmp_path, out, r, columns):
    """A low-rank pair of a base that nobody has: of 16 MiB, its product would be 16 TiB."""
    pair = {"lora_A.x": np.ones((r, columns), np.float32), "lora_B.x": np.ones((out, r), np.float32)}
    path = tmp_path / "file"
    path.write_bytes(dumps(tiny_delta.make_delta(tensors=tiny_delta.tensors_for() | pair)))
    tracemalloc.start()
    facts = inspect_file(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert facts["parameters"]["delta"] >= r * (out + columns)
    assert peak < 6 * path.stat().st_size + 64 * 2**20


@given(st.data())
def test_changed_bytes_are_refused_or_mean_what_they_say(data):
    """Whatever we accept, the official library accepts too and sees the same numbers."""
    changed = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(GOOD) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    try:
        delta = loads(bytes(changed))
    except OneBertError:
        return
    views = dict(safetensors.deserialize(bytes(changed)))
    assert {name: bytes(view["data"]) for name, view in views.items()} == {
        name: tensor.tobytes() for name, tensor in delta.tensors.items()
    }


@given(st.binary(max_size=200))
def test_any_bytes_are_a_typed_error(data):
    with pytest.raises(OneBertError):
        loads(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=20,
    )
)
def test_any_json_as_header_or_manifest_is_a_typed_error(value):
    with pytest.raises(OneBertError):
        loads(file_bytes(json.dumps({"a": value}).encode()))
    with pytest.raises(InvalidManifest):
        loads(with_manifest(json.dumps(value)))


def test_reading_never_unpickles(tmp_path):
    archive = tmp_path / "model.bin"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(tiny_delta.entry))
    seen = []
    sys.addaudithook(lambda event, _: seen.append(event) if event == "pickle.find_class" else None)
    with pytest.raises(MalformedFile):
        loads(archive.read_bytes())
    assert loads(GOOD).digest
    assert seen == []
    pickle.loads(pickle.dumps(tiny_delta.entry))
    assert seen == ["pickle.find_class"], "the hook does see unpickling"
