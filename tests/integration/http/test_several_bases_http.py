"""Two bases behind one address, by the command's options, in one process and with front ends."""

import pytest

from bases import tiny_base, wide_base
from forked import Forked
from onebert_server.client import Client
from onebert_store.errors import BaseMismatch
from servers import LAYOUTS, Server, Task, assert_answers, spec

TEXT = "the screen was broken"
PATHS = {"narrow": tiny_base, "wide": wide_base}


class OfBoth(Server):
    def launch(self, **options):
        bases = [word for path in PATHS.values() for word in ("--base", str(path()))]
        return Forked("serve", *bases, **options)


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_one_request_asks_tasks_of_two_bases(tmp_path, front_ends):
    tasks = {name: Task("layernorm", seed=3, folder=path()).with_golden() for name, path in PATHS.items()}
    with OfBoth(tmp_path, front_ends=front_ends) as server, server.client() as client:
        server.push(tasks)
        names = ["wide", "narrow", "wide"]
        for name, classify_item in zip(names, client.classify_items([(name, TEXT) for name in names]), strict=True):
            assert_answers(classify_item, tasks[name].scores(TEXT))
        assert {answer["task"] for answer in client.fanout(TEXT)} == tasks.keys()
        with Client(server.url) as typed:
            assert [answer.digest for answer in typed.base().bases] == [spec(path()).digest for path in PATHS.values()]
        with pytest.raises(BaseMismatch, match="the bases here are"):
            client.push("foreign", Task(base={"name": "x", "model_type": "bert", "digest": f"sha256:{'0' * 64}"}).file)
        assert " and ".join(spec(path()).name for path in PATHS.values()) in server.greeting
