"""The page of a server with keys: who signs in sees what its key is for, and the key is in memory or one tab alone."""

import pytest
from playwright.sync_api import expect

from browsers import assert_accessible, needs_chromium, opened
from servers import Task

pytestmark = [pytest.mark.slow, needs_chromium]

KEY = "root-key-0123456789"
SETTINGS = {"api_keys": KEY}
STORED = {"acme-tone": [Task(seed=1), Task(seed=2)], "blue-tone": Task(seed=3)}
# What the browser itself says of an answer of 401.
REFUSALS = ["Failed to load resource"]


@pytest.fixture(scope="module")
def own(server):
    """A key that classifies with some tasks, and may do nothing else."""
    with server.client(api_key=KEY) as client:
        body = {"name": "reader", "scopes": ["classify"], "tasks": ["acme-*"]}
        return client.send("POST", "/v1/keys", json=body).json()["key"]


@pytest.fixture
def page(browser, server):
    with opened(browser, server.url, expected=REFUSALS) as opened_page:
        yield opened_page


def sign_in(page, key):
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_key_that_is_not_taken_is_refused_in_words(page):
    assert_accessible(page, "sign in")
    sign_in(page, "no-such-key-0000")
    expect(page.get_by_role("alert")).to_contain_text("does not take this key")
    expect(page.get_by_label("API key")).to_be_visible()
    assert_accessible(page, "refused")


def test_the_key_is_in_memory_only(page, server):
    sent = []
    page.on("request", lambda request: sent.append(request.url + (request.post_data or "")))
    sign_in(page, KEY)
    expect(page.get_by_role("list", name="Tasks").get_by_role("link")).to_have_count(2)
    page.get_by_role("link", name="acme-tone").click()
    expect(page.get_by_role("button", name="Promote version 2")).to_be_visible()
    page.locator(".calls summary").click()
    expect(page.locator(".snippet").first).to_contain_text("$ONEBERT_API_KEY")
    script = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state])"
    assert KEY not in page.evaluate(script)
    assert page.evaluate("indexedDB.databases().then((found) => found.length)") == 0
    assert page.context.cookies() == []
    assert KEY not in page.content() + "".join(sent)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert page.get_by_label("API key").input_value() == ""


def test_a_tab_keeps_the_key_if_the_user_wants_that(page, server):
    page.get_by_label("Stay signed in").check()
    sign_in(page, KEY)
    expect(page.get_by_role("list", name="Tasks").get_by_role("link")).to_have_count(2)
    page.goto(f"{server.url}/#/tasks/acme-tone")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("acme-tone")
    assert KEY not in page.evaluate("JSON.stringify([{...localStorage}, document.cookie, location.href])")
    # Another tab knows nothing of it.
    other = page.context.new_page()
    other.goto(server.url)
    expect(other.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert page.evaluate("sessionStorage.length") == 0


def test_what_one_session_still_waits_for_ends_with_it(page, server):
    """Else its late answer, 401 by now, signs out who has come next."""
    with server.client(api_key=KEY) as client:
        body = {"name": "short", "scopes": ["classify"], "tasks": ["*"]}
        made = client.send("POST", "/v1/keys", json=body).json()
        sign_in(page, made["key"])
        page.get_by_role("link", name="Try").click()
        page.get_by_label("Task", exact=True).fill("acme-tone")
        page.get_by_label("Text", exact=True).fill("late")
        page.route("**/classify", lambda route: None)
        with page.expect_request("**/classify"):
            page.get_by_role("button", name="Classify").click()
        with page.expect_event("requestfailed") as failed:
            page.get_by_role("button", name="Sign out").click()
        assert failed.value.failure == "net::ERR_ABORTED"
        client.send("DELETE", f"/v1/keys/{made['id']}")
    page.unroute("**/classify")
    sign_in(page, KEY)
    page.get_by_role("link", name="Tasks").click()
    page.get_by_role("link", name="acme-tone").click()
    expect(page.get_by_role("button", name="Promote version 2")).to_be_visible()


def test_a_key_sees_its_own_tasks_and_is_offered_what_it_may(page, server, own_page):
    sign_in(page, own_page)
    expect(page.get_by_role("list", name="Tasks").get_by_role("link")).to_have_count(1)
    expect(page.get_by_text("reader", exact=True)).to_be_visible()
    page.get_by_role("link", name="acme-tone").click()
    expect(page.locator(".versions h3")).to_have_count(2)
    expect(page.get_by_role("button", name="Promote")).to_have_count(0)
    assert_accessible(page)


def test_a_key_that_is_revoked_signs_out(page, server):
    with server.client(api_key=KEY) as client:
        body = {"name": "short", "scopes": ["classify"], "tasks": ["*"]}
        made = client.send("POST", "/v1/keys", json=body).json()
        sign_in(page, made["key"])
        expect(page.get_by_role("list", name="Tasks").get_by_role("link")).to_have_count(2)
        client.send("DELETE", f"/v1/keys/{made['id']}")
    page.get_by_role("link", name="acme-tone").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_role("alert")).to_contain_text("no longer taken")
