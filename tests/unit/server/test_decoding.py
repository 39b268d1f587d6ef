"""Bodies of questions, read at once: as the slower reading of JSON reads them, or not at all."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from onebert_server.http.decoding import BrokenRules, converted
from onebert_server.http.routes.classify import ROUTES
from onebert_server.http.strict import parsed
from onebert_server.limits import MAX_ITEMS, MAX_TEXT
from onebert_store.errors import TooLarge

CLASSIFY, ITEMS = (
    next(route.format for route in ROUTES if route.path == path)
    for path in ("/v1/tasks/{task}/classify", "/v1/classify")
)
TEXT = "It broke: after a week."


def outcome(read, body):
    """The body as read, or the type and words of the refusal."""
    try:
        return read(body)
    except (HTTPException, BrokenRules) as error:
        return type(error), getattr(error, "rules", error)


def slowly(form, body):
    return converted(form.decoder.kind, parsed(body))


def assert_read_alike(form, body):
    read, expected = outcome(lambda body: form.read(body, {}), body), outcome(lambda body: slowly(form, body), body)
    assert str(read) == str(expected)


@pytest.mark.parametrize("written", [json.dumps, lambda value: json.dumps(value, separators=(",", ":"))])
@pytest.mark.parametrize(
    "fields",
    [
        *(
            {"inputs": inputs}
            for inputs in (TEXT, [TEXT, "日本語", "שלום"], ['é\n"quoted" \\ 😀!'], [TEXT] * MAX_ITEMS)
        ),
        {"inputs": {"text": TEXT, "text_pair": "b"}, "top_k": 3, "window": {"tokens": 16, "overlap": 8}},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_bodies_that_keep_all_rules_are_read_at_once(fields, written):
    body = written(fields).encode()
    assert CLASSIFY.decoder.at_once(body) == slowly(CLASSIFY, body)


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
        rb'{"inputs":"a\u003a","inputs":"b\u003a"}',
        rb'{"inputs":"a","\u0069nputs":"b"}',
        b'{"inputs":[{"text":"a","text":"b"}]}',
        b'{"inputs":"a","window":{"tokens":16,"tokens":16}}',
        b'{"inputs":"a","top_k":null,"energy":false}',
        b'{"inputs":"a","top_k":"\\ud800"}',
        b'{"inputs":"a","partial":true}',
        b'{"inputs":"a"} ',
        b'{"inputs":"a"}}',
        b'\xef\xbb\xbf{"inputs":"a"}',
        b'{"inputs": [["a"]]}',
        b'{"inputs": "a" "b"}',
        b'{"inputs":"a",}',
        b'"\\ud800"',
        json.dumps({"inputs": [TEXT] * (MAX_ITEMS + 1)}).encode(),
        json.dumps({"inputs": "a" * (MAX_TEXT + 1)}).encode(),
        json.dumps({"inputs": "," * 4000 + "a"}).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_other_bodies_are_read_or_refused_by_the_slower_reading(body):
    assert_read_alike(CLASSIFY, body)


def test_values_are_counted_before_they_are_made():
    body = b'{"inputs":[' + b'"no",' * 200_000 + b'"no"]}'
    tracemalloc.start()
    with pytest.raises(TooLarge, match="2048 values; send inputs in parts of at most 64"):
        CLASSIFY.read(body, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * len(body)


@given(st.one_of(st.text(), st.lists(st.one_of(st.text(), st.integers()))), st.booleans())
def test_all_texts_are_read_alike(inputs, escaped):
    assert_read_alike(CLASSIFY, json.dumps({"inputs": inputs}, ensure_ascii=escaped).encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=30))
def test_all_bytes_are_read_alike(inner):
    for body in (b'{"inputs":' + inner + b"}", b'{"inputs":"' + inner + b'"}', b'{"items":[{"text":' + inner + b"}]}"):
        assert_read_alike(CLASSIFY if b"inputs" in body else ITEMS, body)
