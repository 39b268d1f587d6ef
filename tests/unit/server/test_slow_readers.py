"""Large answers that their clients take slowly: sent in pieces, and bounded together."""

import asyncio
from types import SimpleNamespace

import pytest

from onebert_server.access.principal import root
from onebert_server.fairness.shares import Permits
from onebert_server.http.replies import PIECE_BYTES
from onebert_server.http.strict import Answer
from onebert_store.errors import QueueFull

SIZE = 10 * PIECE_BYTES + 7
CONTENT = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)


class Client:
    """Takes an answer, one message for each permission."""

    def __init__(self):
        self.taken, self.may = [], asyncio.Semaphore(0)

    async def send(self, message):
        await self.may.acquire()
        self.taken.append(message)

    def take_all(self):
        for _ in range(100):
            self.may.release()

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.taken)


def _answer(untaken, principal, content=CONTENT):
    edge, context = SimpleNamespace(untaken=untaken), SimpleNamespace(principal=root(principal))
    request = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(edge=edge)), state=SimpleNamespace(context=context)
    )
    return Answer(request, content, "application/octet-stream", {"X": "y"})


async def _begin(answer, client):
    sending = asyncio.create_task(answer({"type": "http"}, None, client.send))
    await asyncio.sleep(0)
    return sending


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, SIZE])
async def test_an_answer_arrives_whole_in_pieces(size):
    client = Client()
    client.take_all()
    await _answer(Permits(SIZE, "full"), "a", CONTENT[:size])({"type": "http"}, None, client.send)
    assert client.body == CONTENT[:size]
    assert client.taken[0]["status"] == 200
    assert (b"content-length", str(size).encode()) in client.taken[0]["headers"]
    assert max(len(message.get("body", b"")) for message in client.taken) <= PIECE_BYTES
    assert [message.get("more_body", False) for message in client.taken[1:]][-1] is False


async def test_unread_answers_are_bounded_by_principal():
    untaken = Permits(4 * SIZE, "too many bytes wait for their clients")
    slow = [Client() for _ in range(2)]
    sending = [await _begin(_answer(untaken, "slow"), client) for client in slow]
    refused = Client()
    with pytest.raises(QueueFull):
        await _answer(untaken, "slow")({"type": "http"}, None, refused.send)
    assert refused.taken == [], "a refusal comes before the answer has begun"
    small, other = Client(), Client()
    for client, answer in ((small, _answer(untaken, "slow", b"ok")), (other, _answer(untaken, "other"))):
        client.take_all()
        await answer({"type": "http"}, None, client.send)
    assert (small.body, other.body) == (b"ok", CONTENT)

    slow[0].take_all()
    await sending[0]
    sending[1].cancel()
    await asyncio.wait(sending)
    refused.take_all()
    await _answer(untaken, "slow", CONTENT * 4)({"type": "http"}, None, refused.send)
    assert refused.body == CONTENT * 4, "what was taken or given up is counted no more"
