"""What is read of a JSON body before it is parsed, on which thread it is parsed, and how it is inflated."""

import asyncio
import base64
import gzip
import hashlib
import json
import re
import threading
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from onebert_server.http.digests import ALGORITHMS, SentDigests
from onebert_server.http.inflate import PIECE_BYTES, InflateMiddleware
from onebert_server.http.strict import MAX_BYTES_ON_LOOP, MAX_VALUES, StrictRequest, count_values
from onebert_store.errors import DigestMismatch, InvalidInput

TEXTS = st.text(alphabet=st.sampled_from('ab,[{"\\\n}]:é'), max_size=20)


@given(
    st.recursive(TEXTS | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)),
    st.booleans(),
)
def test_marks_are_counted_outside_of_strings_alone(value, ascii_only):
    marks = '",[{",' * MAX_VALUES  # so many that it matters where they stand
    body = json.dumps([marks, value], ensure_ascii=ascii_only)
    strings = r'"(?:[^"\\]|\\.)*"'
    assert count_values(body.encode()) == len(re.findall(r"[,\[{]", re.sub(strings, "", body)))


def _read_on(size, decode=lambda _: threading.get_ident(), headers=()):
    """The thread that a body of this size is decoded on."""

    async def receive():
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    request = StrictRequest({"type": "http", "headers": headers}, receive)
    return asyncio.run(request.read(decode))


def test_large_bodies_are_decoded_beside_the_event_loop():
    assert _read_on(MAX_BYTES_ON_LOOP) == threading.get_ident()
    assert _read_on(MAX_BYTES_ON_LOOP + 1) != threading.get_ident()


def test_large_bodies_are_hashed_beside_the_event_loop(monkeypatch):
    hashed_on = []

    class Hasher:
        def __init__(self):
            self.digest = hashlib.sha256().digest

        def update(self, part):
            hashed_on.append(threading.get_ident())

    monkeypatch.setitem(ALGORITHMS, "sha-256", Hasher)
    expected = base64.b64encode(hashlib.sha256().digest())
    decoded_on = _read_on(MAX_BYTES_ON_LOOP + 1, headers=[(b"content-digest", b"sha-256=:" + expected + b":")])
    assert hashed_on == [decoded_on] != [threading.get_ident()]


@pytest.mark.parametrize(
    "fields",
    [
        [("Content-Digest", ",".join(["sha-512=:AAAA:"] * 2000))],
        [("Content-Digest", "sha-256=:AAAA:"), ("Content-Digest", "SHA-256=:AAAA:")],
        [("Digest", "sha-256=AAAA, md5=AAAA, sha-256=AAAA")],
    ],
)
def test_a_body_is_hashed_once_by_each_algorithm(fields):
    """Thirty kilobytes of digests would be seconds of work for each mebibyte of a body."""
    with pytest.raises(InvalidInput, match="more than one digest"):
        SentDigests(Headers(raw=[(name.lower().encode(), value.encode()) for name, value in fields]))


def test_both_fields_may_name_one_algorithm_and_both_must_hold():
    right, wrong = (base64.b64encode(hashlib.sha256(body).digest()).decode() for body in (b"body", b"other"))
    for content, plain, holds in ((right, right, True), (right, wrong, False), (wrong, right, False)):
        digests = SentDigests(Headers({"Content-Digest": f"sha-256=:{content}:", "Digest": f"sha-256={plain}"}))
        digests.update(b"body")
        with nullcontext() if holds else pytest.raises(DigestMismatch):
            digests.check()


def test_others_have_their_turn_while_a_small_body_becomes_a_large_one():
    """What is received at once becomes many pieces, and the event loop is nobody's between them."""
    pieces, turns = 40, []
    sent = gzip.compress(bytes(pieces * PIECE_BYTES))

    async def receive():
        return {"type": "http.request", "body": sent, "more_body": False}

    async def read(scope, receive, send):
        more, size = True, 0
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        turns.append(size)

    async def another():
        while pieces * PIECE_BYTES not in turns:
            turns.append(None)
            await asyncio.sleep(0)

    async def both():
        headers = [(b"content-encoding", b"gzip")]
        scope = {"type": "http", "method": "POST", "headers": headers, "state": {"max_body_bytes": len(sent) * 2**11}}
        await asyncio.gather(InflateMiddleware(read)(scope, receive, None), another())

    asyncio.run(both())
    assert turns.count(None) >= pieces
