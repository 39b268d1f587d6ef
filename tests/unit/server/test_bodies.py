"""What is read of a JSON body before it is parsed, and on which thread it is parsed."""

import asyncio
import json
import re
import threading

from hypothesis import given
from hypothesis import strategies as st

from onebert_server.http.strict import MAX_BYTES_ON_LOOP, MAX_VALUES, StrictRequest, count_values

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


def _read_on(size):
    """The thread that a body of this size is decoded on."""

    async def receive():
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    request = StrictRequest({"type": "http", "headers": []}, receive)
    return asyncio.run(request.read(lambda _: threading.get_ident()))


def test_large_bodies_are_decoded_beside_the_event_loop():
    assert _read_on(MAX_BYTES_ON_LOOP) == threading.get_ident()
    assert _read_on(MAX_BYTES_ON_LOOP + 1) != threading.get_ident()
