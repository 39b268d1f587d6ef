"""What bodies of clients hold besides JSON values: halves of surrogate pairs, bytes of tensors."""

import json
import struct
import sys
import unicodedata

import pytest

from onebert_server.facades.clients import litellm, open_inference, tensors
from onebert_server.http.decoding import BrokenRules, Decoder, converted
from onebert_server.http.problems import fault_of
from onebert_server.http.schemas.questions import ClassifyRequest
from onebert_store.errors import InvalidInput
from onebert_store.tables.text.unicode import is_blank


def refusal(call):
    """Status and reasons of the fault that a broken rule becomes."""
    with pytest.raises(BrokenRules) as refused:
        call()
    fault = fault_of(refused.value, "an-id")
    return fault.status, fault.sentence


HALF = "must be Unicode, without half of a surrogate pair"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (rb'{"texts": ["half \ud83d"]}', f"texts.0: {HALF}"),
        (rb'{"texts": ["fine \ud83d\ude00", "\uDE00"], "model": "\ud83d"}', f"texts.1: {HALF}"),
        (rb'{"texts": ["\\ud83d", "\\\ud83d"]}', f"texts.1: {HALF}"),
        (rb'{"additional_provider_specific_params": {"tasks": ["\ud83d"]}}', HALF),
    ],
)
def test_half_a_surrogate_pair_is_named_by_its_field(body, said):
    status, sentence = refusal(lambda: converted(litellm.Check, litellm.read(body, [])))
    assert status == 422
    assert said in sentence


def test_half_a_surrogate_pair_that_nobody_looks_at_changes_no_text():
    texts = rb'["\\ufdd0 \ufdd0 \uFDD0 \\\ufdd0 \\ud800 \ud83d\ude00"]'
    sent = litellm.read(b'{"messages": ["' + rb"\ud83d" + b'"], "texts": ' + texts + b"}", [])
    assert converted(litellm.Check, sent).texts == json.loads(texts)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([1, "a"], "inputs.0.data.0: must be a text"),
        ([None, "a"], "inputs.0.data.0: must be a text"),
        (["a", {}], "inputs.0.data.1: must be a text"),
        ([" ", "a"], "inputs.0.data.0: must not be blank"),
        (["a", "\ud800"], f"inputs.0.data.1: {HALF}"),
    ],
)
def test_what_is_no_text_in_a_tensor_is_named_by_its_place(data, said):
    body = {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": data}]}
    assert refusal(lambda: converted(open_inference.Infer, body).questions()) == (422, said)


def test_a_text_is_blank_here_as_in_files():
    """Characters that this Python's Unicode does not know yet are left to the tokenizer."""
    read, differ = Decoder(ClassifyRequest).at_once, []
    for character in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(character) in ("Cn", "Cs"):
            continue
        refused = read(b'{"inputs":%b}' % json.dumps(f" {character}").encode()) is None
        # A symbol is read by the slower reading.
        if refused != is_blank(character) and (not refused or unicodedata.category(character)[0] not in "PS"):
            differ.append(character)
    assert differ == []


def bytes_of(parameters, tail):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    return tensors.read_body(head + tail, [(tensors.HEAD_LENGTH, str(len(head)).encode())])


TAIL = struct.pack("<I", 1) + b"a"


@pytest.mark.parametrize("size", ["5", "\u8ab2", 5.0, True, [5], {}, -5, 4, 6])
def test_a_size_that_is_no_size_is_refused(size):
    assert converted(open_inference.Infer, bytes_of({"binary_data_size": 5}, TAIL)).questions() == ["a"]
    with pytest.raises(InvalidInput, match=r"^inputs\.0"):
        bytes_of({"binary_data_size": size}, TAIL)


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (TAIL + b"b", "behind the JSON are bytes of no tensor"),
        (b"abc", "ends within its length"),
        (struct.pack("<I", 2**32 - 1) + b"a", "ends within its text"),
        (struct.pack("<I", 1) + b"\xff", "is not UTF-8"),
        (struct.pack("<I", 0) * 70, "more than 64 texts"),
    ],
)
def test_bytes_that_are_no_texts_are_refused(tail, said):
    size = 5 if tail.startswith(TAIL) else len(tail)
    with pytest.raises(InvalidInput, match=said):
        bytes_of({"binary_data_size": size}, tail)


@pytest.mark.parametrize("length", [b"100000000", b"0x5", b"1" * 10, b"-1"])
def test_a_length_that_does_not_say_where_the_json_ends_is_refused(length):
    with pytest.raises(InvalidInput, match="where the JSON ends"):
        tensors.read_body(b"{}", [(tensors.HEAD_LENGTH, length)])


@pytest.mark.parametrize("parameters", [{}, None, 5, [], {"binary_data_size": None}])
def test_bytes_of_which_no_size_is_said_are_refused(parameters):
    with pytest.raises(InvalidInput, match="behind the JSON are bytes of no tensor"):
        bytes_of(parameters, TAIL)
