"""Kept texts labeled in a browser by keys, mouse and toggles: feedback of the server has each label, once."""

import httpx
import pytest
from cryptography.fernet import Fernet
from playwright.sync_api import expect

from browsers import PHONE, assert_accessible, needs_chromium, opened
from servers import Server, Task, store, wait_until

pytestmark = [pytest.mark.slow, needs_chromium]

LABELS = ["complaint", "question", "praise"]
TEXTS = [f"the {thing} was {word}" for thing in ("parcel", "refund", "invoice") for word in ("late", "lovely", "odd")]
TASKS = {
    "light": [Task(seed=1, labels=LABELS), Task(seed=2, labels=LABELS)],
    "dark": Task(seed=1, labels=LABELS),
    "phone": Task(seed=1, labels=LABELS),
    "topics": Task(seed=4, task_type="multi_label", labels=LABELS),
    "empty": Task(seed=1, labels=LABELS),
    "names": Task(seed=6, pooling="none", labels=["O", "B-X"], task_type="token"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("review")
    store(folder / "data", **TASKS)
    with Server(folder, samples_key=Fernet.generate_key().decode()) as running, running.client() as client:
        keeping = TASKS.keys() - {"empty", "names"}
        for task in keeping:
            client.send("PUT", f"/v1/tasks/{task}/samples", json={"share": 1.0})
            body, headers = {"inputs": TEXTS}, {"X-Request-Id": task}
            httpx.post(f"{running.url}/v1/tasks/{task}/classify", json=body, headers=headers).raise_for_status()
        wait_until(lambda: all(len(queue(client, task)) == len(TEXTS) for task in keeping))
        both = {"split": {"1": 60, "2": 40}}
        etag = client.send("GET", "/v1/tasks/light/aliases/live").headers["ETag"]
        client.send("PUT", "/v1/tasks/light/aliases/live", json=both, headers={"If-Match": etag})
        yield running


def queue(client, task):
    return client.send("GET", f"/v1/tasks/{task}/review?limit=100").json()["items"]


def feedback(client, task):
    return {row["text"]: row for row in client.send("GET", f"/v1/tasks/{task}/feedback").json()["feedback"]}


@pytest.mark.parametrize(
    ("task", "options"), [("light", {}), ("dark", {"color_scheme": "dark"}), ("phone", {"viewport": PHONE})]
)
def test_texts_are_labeled_by_keys_skipped_and_labeled_again(browser, server, client, task, options):
    first, second, third, *rest = queue(client, task)
    with opened(browser, f"{server.url}/#/tasks/{task}", **options) as page:
        page.get_by_role("link", name="Review").click()
        text, done, note = page.locator("#text"), page.locator("#done"), page.locator("#said")
        expect(text).to_have_text(first["text"])
        expect(page.get_by_role("region", name="Version")).to_have_count(len(first["answers"]))
        expect(done).to_have_text(f"{len(TEXTS)} left, 0 done")
        assert_accessible(page, "review")
        page.get_by_label("Order").focus()
        page.keyboard.press("3")
        expect(text).to_have_text(first["text"])
        page.get_by_role("heading", level=1).focus()
        page.keyboard.press("1")
        expect(text).to_have_text(second["text"])
        expect(text).to_be_focused()
        expect(note).to_have_text("Labeled complaint, 1 done")
        page.keyboard.press("Enter")
        expect(text).to_have_text(third["text"])
        page.keyboard.press("u")
        expect(text).to_have_text(second["text"])
        expect(done).to_have_text(f"{len(TEXTS) - 1} left, 1 done")
        assert_accessible(page, "undone")
        page.get_by_role("button", name="praise").click()
        expect(text).to_have_text(third["text"])
        page.keyboard.press("s")
        for at, item in enumerate(rest):
            expect(text).to_have_text(item["text"])
            page.keyboard.press("2")
            expect(done).to_have_text(f"{len(TEXTS) - at - 3} left, {at + 3} done, 1 skipped")
        expect(page.get_by_text("No other text waits")).to_be_visible()
        assert_accessible(page, "ended")
    rows = feedback(client, task)
    expected = {first["text"]: "complaint", second["text"]: "praise"} | {item["text"]: "question" for item in rest}
    assert {text: item["label"] for text, item in rows.items()} == expected
    assert {item["kind"] for item in rows.values()} == {"review"}
    assert [item["text"] for item in queue(client, task)] == [third["text"]]


def test_labels_of_a_multi_label_task_are_toggled_and_sent(browser, server, client):
    first, second, *_ = queue(client, "topics")
    with opened(browser, f"{server.url}/#/tasks/topics/review") as page:
        expect(page.locator("#text")).to_have_text(first["text"])
        page.keyboard.press("2")
        assert_accessible(page, "toggled")
        page.keyboard.press("Enter")
        expect(page.locator("#text")).to_have_text(second["text"])
    right = set(first["answers"][0]["labels"]) ^ {"question"}
    assert set(feedback(client, "topics")[first["text"]]["labels"]) == right


def test_without_kept_texts_or_a_queue_the_view_says_what_to_do(browser, server):
    refused = "Failed to load resource: the server responded with a status of 4"
    with opened(browser, f"{server.url}/#/tasks/empty/review", expected=[refused]) as page:
        expect(page.get_by_text("PUT /v1/tasks/empty/samples")).to_be_visible()
        assert_accessible(page, "empty")
    with opened(browser, f"{server.url}/#/tasks/names/review") as page:
        expect(page.get_by_text("onebert review names --out")).to_be_visible()
        expect(page.get_by_text("single_label and multi_label tasks")).to_be_visible()
        assert_accessible(page, "no queue")
