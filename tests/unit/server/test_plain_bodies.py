"""Plain bodies of questions, read at once: as the slower reading reads them, or not at all."""

import json
import tracemalloc

import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from onebert_server.http.routes.classify import ROUTES
from onebert_server.http.schemas.questions import ClassifyRequest
from onebert_server.http.strict import parsed, validated
from onebert_server.limits import MAX_ITEMS, MAX_TEXT
from onebert_store.errors import OneBertError, TooLarge

FORMAT = next(route.format for route in ROUTES if route.path == "/v1/tasks/{task}/classify")
TEXT = "It broke after a week."


def read(body):
    """What the route reads of a body; None if it refuses it."""
    try:
        question = FORMAT.read(body, {})
    except (HTTPException, OneBertError, RequestValidationError):
        return None
    return question.texts, question.asked, question.explain, question.timeout_ms


def slowly(body):
    """What pydantic reads of the JSON; None if one of them refuses it."""
    try:
        question = validated(ClassifyRequest, parsed(body))
    except (HTTPException, OneBertError, RequestValidationError):
        return None
    return question.texts, question.asked, question.explain, question.timeout_ms


@pytest.mark.parametrize("inputs", [TEXT, [TEXT, "日本語"], ['é\n"quoted" \\ 😀'], [TEXT] * MAX_ITEMS], ids=len)
@pytest.mark.parametrize("written", [json.dumps, lambda value: json.dumps(value, separators=(",", ":"))])
def test_texts_alone_are_read_at_once(inputs, written):
    body = written({"inputs": inputs}).encode()
    assert ClassifyRequest.plain(body).texts == ([inputs] if isinstance(inputs, str) else inputs)
    assert read(body) == slowly(body)


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"inputs":%b}' % inputs for inputs in (b"", b"[]", b'""', b"1", b"null", b'["a",1]', b'["a","b"', b'"a"]')),
        *(b'{"inputs":%b}' % text for text in (b'" "', rb'"\u200b"', rb'"\u0000"', b'"\xcc\x81"', b'["a", "\\t"]')),
        *(
            b'{"inputs":"a%b"}' % bad
            for bad in (b"\n", b"\x00", b"\xff", b"\xed\xa0\x80", rb"\ud800", rb"\x", rb"\u12")
        ),
        rb'{"inputs":"\ud83d\ude00a"}',
        b'{"inputs":"a","inputs":"b"}',
        b'{"inputs":"a","explain":true}',
        b'{"inputs":"a","explain":false,"timeout_ms":5}',
        b'{"inputs":"a"} ',
        b'{"inputs":"a"}}',
        b'\xef\xbb\xbf{"inputs":"a"}',
        b'{"inputs": [["a"]]}',
        b'{"inputs": {"text": "a", "text_pair": "b"}}',
        b'{"inputs": ["a", {"text": "b"}]}',
        b'{"inputs": "a" "b"}',
        b'{"inputs":"a",}',
        json.dumps({"inputs": [TEXT] * (MAX_ITEMS + 1)}).encode(),
        json.dumps({"inputs": "a" * (MAX_TEXT + 1)}).encode(),
        json.dumps({"inputs": "a" * MAX_TEXT}).encode(),
        json.dumps({"inputs": "," * 4000 + "a"}).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_other_bodies_are_read_as_they_were_and_refused_as_they_were(body):
    assert read(body) == slowly(body)


def test_values_are_counted_before_they_are_made():
    body = b'{"inputs":[' + b'"no",' * 200_000 + b'"no"]}'
    tracemalloc.start()
    with pytest.raises(TooLarge, match="2048 values"):
        FORMAT.read(body, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * len(body)


@given(st.one_of(st.text(), st.lists(st.one_of(st.text(), st.integers()))), st.booleans())
def test_all_texts_are_read_alike(inputs, escaped):
    body = json.dumps({"inputs": inputs}, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert read(body) == slowly(body)


@given(st.binary(max_size=30))
def test_all_bytes_are_read_alike(inner):
    for body in (b'{"inputs":' + inner + b"}", b'{"inputs":"' + inner + b'"}'):
        assert read(body) == slowly(body)
