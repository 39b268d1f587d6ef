"""Many questions to a server that is busy."""

import json
from typing import ClassVar

from fake_servers import FakeServer, Handler
from onebert_server.client.many import classify_many


class Busy(Handler):
    """Is busy for one item of each first request; what is asked again it answers."""

    asked: ClassVar[list[tuple[list[str], bool]]] = []

    def answer(self):
        body = json.loads(self.body())
        texts = [item["text"] for item in body["items"]]
        self.asked.append((texts, body.get("partial", False)))
        error = {"code": "queue-full", "title": "Full", "detail": "the queue is full"}
        results = [
            {"task": "tone", "error": error}
            if body.get("partial") and text == "7"
            else {"task": "tone", "version": 1, "digest": "sha256:1", "label": text, "score": 0.5}
            for text in texts
        ]
        self.reply(200, json.dumps({"results": results}).encode(), {"Content-Type": "application/json"})

    do_POST = answer


def test_what_a_busy_server_drops_is_asked_again():
    items = [("tone", str(number)) for number in range(150)]
    with FakeServer(Busy) as server:
        assert [answer.label for answer in classify_many(server.url, None, items)] == [text for _, text in items]
    first = sorted(len(texts) for texts, partial in Busy.asked if partial)
    assert first == [22, 64, 64]
    assert [texts for texts, partial in Busy.asked if not partial] == [["7"]]
