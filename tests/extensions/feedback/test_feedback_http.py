"""Kept answers and feedback of a real server: both layouts, two replicas, kill -9, and no text where none may be."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from cryptography.fernet import Fernet

import onebert
from onebert_server.client import Client
from onebert_store.errors import OneBertError, SampleNotFound
from onebert_store.registry.store import StoreAddress, join_store
from onebert_store.samples.store import open_samples
from servers import Server, Task, both_layouts, front_ends, store, wait_until
from stores import feedback_of

PAGE = (Path(__file__).parents[3] / "docs/guide/feedback.md").read_text(encoding="utf-8")
KEY = Fernet.generate_key().decode()
SETTINGS = {"samples_key": KEY}
TONE = Task(seed=1, labels=["negative", "neutral", "positive"])
STORED = {"tone": TONE}
MARKER = "a marker that no file may have"


def samples_of(place):
    """The sample store of a server, as another process sees it."""
    with join_store(place) as opened, open_samples(opened.database, [KEY]) as samples:
        return feedback_of(samples, "tone"), samples.without_feedback("tone", 100_000)


def classified(url, request_id, texts):
    """Classifies; returns the id that begins the ids of kept answers."""
    body, headers = {"inputs": texts}, {"X-Request-Id": request_id}
    answer = httpx.post(f"{url}/v1/tasks/tone/classify", json=body, headers=headers, timeout=60)
    return answer.raise_for_status().headers["X-Request-Id"]


@both_layouts
def test_the_example_of_the_page(server, monkeypatch):
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.setattr(onebert, "Client", partial(Client, server.url))
    names = {}
    exec(code, names)
    with names["client"] as client:
        text = "It broke after a week."
        assert names["answer"].label == TONE.label(text)
        assert (client.samples("tone").share, client.samples("tone").days) == (0.1, 30)
        client.set_samples("tone", 1.0)
        id = classified(server.url, "4bf92f35", [text, "thank you"])
        wait_until(lambda: client.samples("tone").kept == 2)
        [shown] = re.findall(r"-d '(.*)'", PAGE)
        headers, [answer_id] = {"Content-Type": "application/json"}, re.findall(r'"id": "(.*?)/0"', shown)
        content = shown.replace(answer_id, id)
        answer = httpx.post(f"{server.url}/v1/feedback", content=content, headers=headers, timeout=60)
        assert answer.json() == {"data": [{"task": "tone", "identifier": f"{id}/0", "text_kept": True}]}
        rows, waiting = samples_of(server.folder / "data")
        assert [sample.id for sample in waiting] == [f"{id}/1"]
        [by_id] = [sample for sample in rows if sample.answer_id]
        assert (by_id.texts, by_id.answers, by_id.right) == ((text,), {1: names["answer"].label}, "negative")
        client.delete_sample("tone", f"{id}/1")
        with pytest.raises(SampleNotFound):
            client.feedback([{"id": f"{id}/1", "label": "positive"}])
        client.delete_samples("tone")
        assert client.samples("tone").kept == 0
    assert server.metric('onebert_samples_total{result="kept"}') >= 2


@front_ends
def test_identifiers_of_any_characters_are_listed_and_deleted(server):
    names = "Büro-17", "a/b", "/a//b/", "a b", ".", "..", "../../tone", "100%", "%2e%2e", "?x=1#y", "a+b&c", "@"
    names = {*names, "\u00a0soft\u00ad", "👩\u200d🚀", "x" * 256}
    with Client(server.url) as client:
        client.set_samples("tone", 1.0)
        client.feedback([{"task": "tone", "text": "late", "label": "positive", "identifier": name} for name in names])
        listed, page = [], {"next": ""}
        while page["next"] is not None:
            query = {"limit": 1, "after": page["next"]}
            page = httpx.get(f"{server.url}/v1/tasks/tone/feedback", params=query, timeout=60).raise_for_status().json()
            listed += [row["identifier"] for row in page["feedback"]]
        assert {*listed} == names
        for name in names:
            client.delete_sample("tone", name)
            assert {row.identifier for row in client.feedback_rows("tone")} == {*listed} - {name}
            listed.remove(name)
        assert client.samples("tone").share == 1.0
        for refused in ("", "\0", "\ud800"):
            with pytest.raises(OneBertError) as error:
                client.delete_sample("tone", refused)
            assert error.value.code == "invalid-input"
        client.delete_samples("tone")


@front_ends
def test_every_answer_of_a_task_that_keeps_all_is_kept_from_many_threads(server):
    """Nothing is dropped below the bounds, in whichever process the answers are read."""
    with Client(server.url) as client:
        client.set_samples("tone", 1.0)
        # Each request is large enough for a worker thread.
        asked = [(f"many-{n}", [f"late {n} {each}" for each in range(64)]) for n in range(20)]
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda item: classified(server.url, *item), asked))
        wait_until(lambda: client.samples("tone").kept == 1280)
        texts = {item.id: item.texts for item in samples_of(server.folder / "data")[1]}
        assert texts == {
            f"{id}/{n}": (text,) for id, (_, texts) in zip(ids, asked, strict=True) for n, text in enumerate(texts)
        }
        client.delete_samples("tone")


@pytest.mark.parametrize("front_ends", [0, 2], ids=["one process", "front ends"])
def test_without_storing_no_text_touches_a_disk_even_if_it_is_killed(tmp_path, front_ends):
    store(tmp_path / "data", **STORED)
    # Another task keeps its answers, so everything that writes is at work.
    settings = {"samples_key": KEY, "access_log": "json", "log_level": "debug", "front_ends": front_ends}
    with Server(tmp_path, **settings) as server, Client(server.url) as client:
        client.push("other", TONE.file)
        client.set_samples("other", 1.0)
        items = [{"task": task, "text": f"{MARKER} {task}"} for task in ("tone", "other")]
        client.classify_items([(item["task"], item["text"]) for item in items])
        client.feedback([item | {"label": "positive", "explanation": MARKER} for item in items])
        # A new label is words of a client, too: it is kept only where its text is.
        for wrong in ({"label": "none such"}, {"labels": [MARKER]}, {"label": MARKER}, {"value": 1.0}):
            with pytest.raises(OneBertError) as refused:
                client.feedback([items[0] | wrong])
            assert MARKER not in str(refused.value)
        wait_until(lambda: client.samples("other").kept == 1)
        metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
        server.process.kill()
        output = server.process.stdout.read()
        server.wait()
    files = [item.read_bytes() for item in tmp_path.rglob("*") if item.is_file()]
    assert "classify" in output
    assert any(b"samples" in item for item in files)
    for content in (*files, output.encode(), metrics.encode()):
        assert MARKER.encode() not in content
    with open_samples_of(tmp_path) as samples:
        assert [item.texts for item in feedback_of(samples, "tone")] == [None]
        assert [(item.texts, item.explanation) for item in feedback_of(samples, "other")] == [
            ((f"{MARKER} other",), MARKER)
        ]


def open_samples_of(folder):
    from onebert_store.registry.dialects.sqlite import SqliteDatabase

    return open_samples(SqliteDatabase(folder / "data/registry.sqlite3"), [KEY])


def test_killed_in_the_middle_it_has_all_feedback_that_was_acknowledged(tmp_path):
    store(tmp_path / "data", **STORED)
    acknowledged, asked, ids = [], [], {}

    def work(url, thread):
        with Client(url, timeout=20) as client, suppress(OneBertError, httpx.HTTPError):
            for n in range(10_000):
                id = f"{thread}-{n}"
                asked.append(id)
                ids[classified(url, id, [f"late {id}"])] = id
                client.feedback([{"task": "tone", "text": f"bad {id}", "label": "positive", "identifier": id}])
                acknowledged.append(id)

    with Server(tmp_path, samples_key=KEY, front_ends=2) as server, ThreadPoolExecutor(4) as pool:
        with Client(server.url) as client:
            client.set_samples("tone", 1.0)
        working = [pool.submit(work, server.url, thread) for thread in range(4)]
        wait_until(lambda: len(acknowledged) > 20)
        server.kill()
        for row in working:
            row.result()
        server.start()
        with Client(server.url) as client:
            client.feedback([{"task": "tone", "text": "after", "label": "positive", "identifier": "after"}])
    rows, waiting = samples_of(tmp_path / "data")
    assert {*acknowledged, "after"} <= {row.identifier for row in rows} <= {*asked, "after"}
    assert all(set(row.answers) == {1} and len(row.texts) == 1 for row in rows)
    assert waiting
    # Of the requests at the death an answer may be kept whose head never came.
    assert {row.texts for row in waiting} <= {(f"late {id}",) for id in asked}
    there = {row.id: row.texts for row in waiting}
    assert all(there.get(f"{unique}/0", (f"late {id}",)) == (f"late {id}",) for unique, id in ids.items())


def test_two_replicas_share_samples_and_feedback(tmp_path, postgres_url):
    place = StoreAddress.within(tmp_path / "one", postgres_url, (tmp_path / "blobs").as_uri())
    shared = {"samples_key": KEY, "registry": postgres_url, "blobs": place.blobs}
    with Server(tmp_path, data_dir=tmp_path / "one", **shared) as first:
        with Client(first.url) as client:
            client.push("tone", TONE.file)
        folder = tmp_path / "second"
        folder.mkdir()
        with Server(folder, **shared) as two, Client(first.url) as client, Client(two.url) as other:
            client.set_samples("tone", 1.0)
            wait_until(lambda: other.samples("tone").share == 1.0)
            a, b = (classified(server.url, "same", ["late"]) for server in (first, two))
            wait_until(lambda: client.samples("tone").kept == 2)
            # Each replica takes feedback on an answer of the other.
            client.feedback([{"id": f"{b}/0", "label": "positive"}])
            other.feedback([{"id": f"{a}/0", "label": "positive"}])
            assert samples_of(place)[1] == []
            other.delete_samples("tone")
            wait_until(lambda: client.samples("tone").share is None)
            classified(first.url, "c", ["late"])
            client.delete_task("tone")
    with join_store(place) as opened, open_samples(opened.database, [KEY]) as samples:
        assert samples.sweeper._ids() == []
