"""What is read of a JSON body before it is parsed, within which time, on which thread, and how it is inflated."""

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
from starlette.requests import ClientDisconnect

from onebert_server.http.body import MAX_BYTES_ON_LOOP, PIECE_BYTES, Bodies, Body, SentDigests
from onebert_server.http.head import HEAD, Head
from onebert_server.http.strict import MAX_VALUES, count_values
from onebert_server.limits import BODY_BYTES, MAX_COMING_BYTES
from onebert_store.errors import DigestMismatch, InvalidInput, QueueFull
from parts import context

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


def body_of(receive, headers=(), principal="someone", bodies=None):
    """A body that comes by `receive`."""
    scope = {"method": "POST", "state": {HEAD: Head(headers)}}
    return Body(scope, receive, context(principal), bodies or Bodies(BODY_BYTES, 60))


def _read_on(size, headers=()):
    """The thread that a body of this size is decoded on."""

    async def receive():
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    async def read():
        body = body_of(receive, headers)
        return await body.decoded(await body.read(), lambda _: threading.get_ident())

    return asyncio.run(read())


def test_large_bodies_are_decoded_beside_the_event_loop():
    assert _read_on(MAX_BYTES_ON_LOOP) == threading.get_ident()
    assert _read_on(MAX_BYTES_ON_LOOP + 1) != threading.get_ident()


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
        SentDigests(Head([(name.lower().encode(), value.encode()) for name, value in fields]))


def test_both_fields_may_name_one_algorithm_and_both_must_hold():
    right, wrong = (base64.b64encode(hashlib.sha256(body).digest()) for body in (b"body", b"other"))
    for content, plain, holds in ((right, right, True), (right, wrong, False), (wrong, right, False)):
        digests = SentDigests(
            Head([(b"content-digest", b"sha-256=:%b:" % content), (b"digest", b"sha-256=%b" % plain)])
        )
        digests.update(b"body")
        with nullcontext() if holds else pytest.raises(DigestMismatch):
            digests.compare()


async def test_inflating_a_body_holds_up_nobody():
    """What is received at once becomes many pieces, and the event loop is nobody's between them."""
    pieces, turns = 40, []
    sent = gzip.compress(bytes(pieces * PIECE_BYTES))

    async def receive():
        return {"type": "http.request", "body": sent, "more_body": False}

    async def read():
        body = body_of(receive, [(b"content-encoding", b"gzip")], bodies=Bodies(len(sent) * 2**11, 60))
        more, size = True, 0
        while more:
            message = await body.receive()
            size, more = size + len(message["body"]), message["more_body"]
        turns.append(size)

    async def another():
        while pieces * PIECE_BYTES not in turns:
            turns.append(None)
            await asyncio.sleep(0)

    await asyncio.gather(read(), another())
    assert turns.count(None) >= pieces


class Arriving:
    """A body of whose bytes the last one comes when a test says so, or never; `reading` gives its length."""

    def __init__(self, bodies, principal, size):
        self.ends = asyncio.Queue()
        self.ends.put_nowait({"type": "http.request", "body": bytes(size - 1), "more_body": True})
        self.reading = asyncio.create_task(body_of(self.ends.get, (), principal, bodies).read())

    async def end(self, message=None):
        self.ends.put_nowait(message or {"type": "http.request", "body": b"x"})
        await asyncio.wait([self.reading])


async def test_unfinished_bodies_are_bounded_by_principal():
    limited = Bodies(BODY_BYTES, 60)
    short = [Arriving(limited, "short", BODY_BYTES) for _ in range(2 * MAX_COMING_BYTES // BODY_BYTES)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    held = [body for body in short if not body.reading.done()]
    assert len(held) * BODY_BYTES <= MAX_COMING_BYTES // 2 + BODY_BYTES
    for refused in set(short) - set(held):
        with pytest.raises(QueueFull):
            await refused.reading

    await Arriving(limited, "other", BODY_BYTES).end()
    await held[0].end({"type": "http.disconnect"})
    with pytest.raises(ClientDisconnect):
        await held[0].reading
    for body in held[1:]:
        await body.end()
    assert [len(body.reading.result()) for body in held[1:]] == [BODY_BYTES] * len(held[1:])
    again = [Arriving(limited, "third", BODY_BYTES) for _ in held[1:]]
    for body in again:
        await body.end()
        await body.reading
