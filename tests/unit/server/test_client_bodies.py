"""What bodies of clients hold besides JSON values: halves of surrogate pairs, bytes of tensors."""

import json
import struct
import sys
import unicodedata

import pytest

from onebert_server.facades.clients import litellm, open_inference, tensors
from onebert_server.http.decoding import Decoder, converted
from onebert_server.http.schemas.questions import ClassifyRequest
from onebert_store.errors import InvalidInput
from onebert_store.tables.text.unicode import is_blank


def test_half_a_surrogate_pair_elsewhere_changes_no_text():
    texts = rb'["\\ufdd0 \ufdd0 \uFDD0 \\\ufdd0 \\ud800 \ud83d\ude00"]'
    sent = litellm.read(b'{"messages": ["' + rb"\ud83d" + b'"], "texts": ' + texts + b"}", [])
    assert converted(litellm.Check, sent).texts == json.loads(texts)


def test_a_text_is_blank_here_as_in_files():
    """Characters that this Python's Unicode does not know yet are left to the tokenizer."""
    read, differ = Decoder(ClassifyRequest).at_once, []
    for character in map(chr, range(sys.maxunicode + 1)):
        kind = unicodedata.category(character)
        # Of letters, digits and symbols some stand for all.
        if kind in ("Cn", "Cs") or (kind[0] in "LNPS" and ord(character) % 64):
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
    ("tail", "message"),
    [
        (TAIL + b"b", "behind the JSON are bytes of no tensor"),
        (b"abc", "ends within its length"),
        (struct.pack("<I", 2**32 - 1) + b"a", "ends within its text"),
        (struct.pack("<I", 1) + b"\xff", "is not UTF-8"),
        (struct.pack("<I", 0) * 70, "more than 64 texts"),
    ],
)
def test_bytes_that_are_no_texts_are_refused(tail, message):
    size = 5 if tail.startswith(TAIL) else len(tail)
    with pytest.raises(InvalidInput, match=message):
        bytes_of({"binary_data_size": size}, tail)


@pytest.mark.parametrize("length", [b"100000000", b"0x5", b"1" * 10, b"-1"])
def test_a_length_that_does_not_say_where_the_json_ends_is_refused(length):
    with pytest.raises(InvalidInput, match="where the JSON ends"):
        tensors.read_body(b"{}", [(tensors.HEAD_LENGTH, length)])
