"""The client library against a real server: both clients, every method, more inputs than one request takes."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from both_clients import BOTH
from onebert_server.client import Client, as_dict
from onebert_store.errors import (
    AliasConflict,
    InvalidInput,
    MalformedFile,
    ServerUnreachable,
    TaskNotFound,
    VersionInUse,
)
from servers import Task, assert_answers

PAIR = ("first", "second")


@pytest.fixture(scope="module")
def task(server):
    made = Task(labels=["good", "bad", "ugly"], seed=1)
    with Client(server.url) as client:
        client.push("mood", made.file)
    return made


@pytest.fixture(**BOTH)
def ask(request, server):
    """Calls one method of either client, on a connection of its own."""

    def call(method, *arguments, url=server.url, **options):
        with request.param(url, **options) as client:
            return getattr(client, method)(*arguments)

    return call


def test_one_input_has_one_answer(ask, task):
    for text in ("my order is late", PAIR):
        answer = ask("classify", "mood", text)
        assert_answers(as_dict(answer), task.scores(*([text] if isinstance(text, str) else text)))
        assert (answer.task, answer.version, answer.truncated) == ("mood", 1, False)
        assert answer.digest == "sha256:" + hashlib.sha256(task.file).hexdigest()
        assert (answer.labels, answer.words, answer.answers) == (None, None, None)


def test_more_inputs_than_a_request_takes_are_answered_in_order(ask, task):
    texts = [f"order {number} is late" for number in range(150)]
    for answers in (ask("classify", "mood", texts), ask("classify_items", [("mood", text) for text in texts])):
        assert len(answers) == 150
        for text, answer in zip(texts, answers, strict=True):
            assert_answers(as_dict(answer), task.scores(text))


def test_an_alias_moves_by_what_the_commands_are_called(ask, server, request):
    name = f"moved-{request.node.callspec.params['ask'].__name__.lower()}"
    for seed in (1, 2, 3):
        with Client(server.url) as client:
            client.push(name, Task(labels=["good", "bad"], seed=seed).file)

    def live():
        with Client(server.url) as client:
            return client.status(name).live.words

    assert ask("promote", name, 2).version == 2
    ask("rollout", name, {2: 90, 3: 10})
    assert live() == "90 % 2, 10 % 3"
    ask("rollback", name)
    assert live() == "1"
    ask("promote", name, 3, "canary")
    with pytest.raises(InvalidInput, match=f"{name}@canary was at no version before"):
        ask("rollback", name, "canary")


def test_inputs_of_more_bytes_than_a_request_takes_are_answered(ask, task):
    # 60 texts of 60,000 bytes each: three times what a body may hold.
    texts = ["ü" * 30000] * 60
    assert len(ask("classify", "mood", texts)) == 60


def test_fanout(ask, task):
    (answer,) = ask("fanout", "my order is late", ["mood@1"], 2)
    assert answer.task == "mood"
    assert len(answer.scores) == 2


def test_the_life_of_versions_and_aliases(ask, request):
    first, second = Task(seed=40), Task(seed=41)
    name = f"life-{request.node.callspec.params['ask'].__name__.lower()}"
    assert [ask("push", name, each.file).version for each in (first, second)] == [1, 2]
    assert ask("push", name, first.file).created is False
    assert ask("download", name, 2) == second.file
    moved = ask("move_alias", name, "live", 2, 1, "all")
    assert (moved.version, moved.previous) == (2, 1)
    with pytest.raises(AliasConflict):
        ask("move_alias", name, "live", 1, 1)
    with pytest.raises(VersionInUse):
        ask("delete_version", name, 2)
    facts = ask("task", name)
    assert (facts.aliases, facts.previous) == ({"live": 2}, {"live": 1})
    assert [version.method for version in facts.versions] == ["bitfit", "bitfit"]
    assert datetime.now(UTC) - facts.versions[0].created_at < timedelta(hours=1)
    version = ask("version", name, 1)
    assert version.manifest["labels"] == first.manifest["labels"]
    assert name in [each.name for each in ask("tasks")]
    assert ask("classify", name, "where is my order?").version == 2
    assert ask("task", name).previous == {"live": 1}
    ask("delete_version", name, 1)
    ask("delete_alias", name, "live", 2)
    ask("delete_task", name)
    assert name not in [each.name for each in ask("tasks")]
    with pytest.raises(TaskNotFound):
        ask("task", name)


def test_refusals_are_typed(ask, task, tmp_path):
    for wrong, error, message in (
        (("classify", "nobody", "x"), TaskNotFound, "nobody"),
        (("classify", "", "x"), InvalidInput, "a name"),
        (("classify", "mood", " "), InvalidInput, "blank"),
        (("classify", "mood", ["x"] * 70 + [" "]), InvalidInput, "^input 70: .*blank"),
        (("classify", "mood", "\ud800"), InvalidInput, "Unicode"),
        (("classify", "mood", [7]), InvalidInput, "two texts"),
        (("classify", "mood", ("a", "b", "c")), InvalidInput, "two texts"),
        (("push", "mood", b"no delta"), MalformedFile, "no delta file"),
        (("push", "mood", tmp_path / "nowhere"), InvalidInput, "cannot be read"),
    ):
        with pytest.raises(error, match=message):
            ask(*wrong)


def test_nobody_there(ask):
    assert ask("ready", url="http://127.0.0.1:1") is False
    with pytest.raises(ServerUnreachable, match=r"nothing answers at http://127\.0\.0\.1:1;"):
        ask("tasks", url="http://127.0.0.1:1")
    for wrong in ("ftp://127.0.0.1", "127.0.0.1", "http://", "http://["):
        with pytest.raises((InvalidInput, ServerUnreachable)):
            ask("tasks", url=wrong)
    with pytest.raises(InvalidInput):
        ask("tasks", api_key="schlüssel ☃")
