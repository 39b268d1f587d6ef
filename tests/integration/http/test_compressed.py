"""Bodies that come compressed or in chunks: answered as if they had come plain, and bounded by what they become."""

import gzip
import hashlib
import json

import pytest

from servers import Task, layouts

pytestmark = layouts

STORED = {"tone": Task()}
TEXT = "please help my order is late"
QUESTIONS = {
    "/v1/tasks/tone/classify": {"inputs": TEXT},
    "/v1/classify": {"items": [{"task": "tone", "text": TEXT}]},
    "/v1/fanout": {"tasks": ["*"], "text": TEXT},
    "/t/tone": {"inputs": TEXT},
    "/t/tone/predict": {"inputs": [[TEXT], [TEXT, TEXT]]},
}
JSON = {"Content-Type": "application/json"}
GZIP = JSON | {"Content-Encoding": "gzip"}


def in_parts(content, size=11):
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("path", QUESTIONS)
def test_compressed_and_chunked_bodies_are_answered_as_plain_ones(web, path):
    plain = json.dumps(QUESTIONS[path]).encode()
    expected = web.post(path, content=plain, headers=JSON)
    assert expected.status_code == 200
    # A generator's length nobody knows, so that it goes in chunks.
    for content, headers in [
        (gzip.compress(plain), GZIP),
        (in_parts(gzip.compress(plain)), GZIP),
        (gzip.compress(b" " * 500_000 + plain), GZIP),
        (in_parts(plain), JSON),
        (in_parts(plain, 1), JSON),
    ]:
        answer = web.post(path, content=content, headers=headers)
        assert (answer.status_code, answer.content) == (200, expected.content)


@pytest.mark.parametrize("path", QUESTIONS)
def test_what_is_no_body_is_refused(web, path):
    body = gzip.compress(json.dumps(QUESTIONS[path]).encode())
    digest = {"Content-Digest": f"sha-256=:{hashlib.sha256(body).hexdigest()}:"}
    for status, content, headers in [
        (413, gzip.compress(b" " * 100_000_000), GZIP),
        (400, body[:-3], GZIP),
        (400, body[:10], GZIP),
        (400, body + b"more", GZIP),
        (400, body + body, GZIP),
        (400, b"{}", GZIP),
        (400, b"", GZIP),
        (400, gzip.compress(b"{"), GZIP),
        (415, body, GZIP | {"Content-Encoding": "gzip, gzip"}),
        (415, body, GZIP | {"Content-Encoding": "br"}),
        (415, body, GZIP | digest),
    ]:
        answer = web.post(path, content=content, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].endswith("json")
    assert web.post(path, content=body, headers=GZIP).status_code == 200
