"""Uploads and load in a browser, and the routes that these ask."""

import itertools
import re

import httpx
import pytest
from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families

from browsers import PHONE, assert_accessible, needs_chromium, opened
from servers import Task, layouts

TASKS = [Task(seed=1), Task(seed=2, kind="lora"), Task(seed=3)]
STORED = {"tone": TASKS}
KEPT = [("onebert_tasks",), ("onebert_http_requests_total", "onebert_http_request_seconds_bucket"), ("nothing",)]


@layouts
@pytest.mark.parametrize("names", KEPT)
def test_metrics_by_name_are_those_alone(server, names):
    with httpx.Client(base_url=server.url, timeout=180) as web:
        web.get("/v1/tasks")
        shown = {
            sample.name for family in read(web.get("/metrics", params={"name[]": names})) for sample in family.samples
        }
        everything = {sample.name for family in read(web.get("/metrics")) for sample in family.samples}
    assert shown == set(names) & everything


def read(answer):
    assert answer.status_code == 200
    return list(text_string_to_metric_families(answer.text))


@pytest.mark.slow
@needs_chromium
def test_a_file_is_uploaded_tried_and_promoted(browser, server, tmp_path):
    path = tmp_path / "Fresh one.safetensors"
    path.write_bytes(Task(seed=11).file)
    with opened(browser, f"{server.url}/#/upload") as page:
        page.get_by_label("Delta file").set_input_files(path)
        expect(page.get_by_label("Task")).to_have_value("fresh-one")
        page.get_by_label("Task").fill("tone")
        page.get_by_role("button", name="Upload").click()
        expect(page.locator("#stored")).to_contain_text("tone has version 4 now")
        assert_accessible(page)
        page.get_by_role("button", name="Upload").click()
        expect(page.locator("#stored")).to_contain_text("tone had this file already, as version 4")
        page.get_by_role("link", name="See it").click()
        expect(page.get_by_role("button", name="Promote version 4")).to_be_visible()
    assert httpx.get(f"{server.url}/v1/tasks/tone/versions/4/delta", timeout=180).content == path.read_bytes()


@pytest.mark.slow
@needs_chromium
def test_a_dropped_file_that_is_refused_is_refused_in_the_servers_words(browser, server):
    with opened(browser, f"{server.url}/#/upload", expected=["Failed to load resource"]) as page:
        drop = """box => {
          const dropped = new DataTransfer();
          dropped.items.add(new File(["no delta at all"], "broken.safetensors"));
          box.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true }));
        }"""
        page.locator(".drop").evaluate(drop)
        expect(page.get_by_text("broken.safetensors, 15 B")).to_be_visible()
        page.get_by_role("button", name="Upload").click()
        headers = {"Content-Type": "application/octet-stream"}
        url = f"{server.url}/v1/tasks/broken/versions"
        body = httpx.put(url, content=b"no delta at all", headers=headers, timeout=180).json()
        alert = page.get_by_role("alert").filter(has_text=body["code"])
        expect(alert).to_contain_text(body["detail"])
        assert_accessible(page)


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_the_server_does_now_is_plotted(browser, server, scheme):
    with opened(browser, f"{server.url}/#/load", color_scheme=scheme, viewport=PHONE) as page:
        expect(page.get_by_role("figure")).to_have_count(4)
        expect(page.get_by_text("Nothing has waited.")).to_be_visible()
        assert_accessible(page, "nothing yet")
        requests = page.get_by_role("img", name=re.compile("^Requests, a second: now [0-9.]*[1-9]"))
        with httpx.Client(base_url=server.url, timeout=180) as web:
            # Until the page has seen some of them.
            for number in itertools.count():
                web.post("/v1/tasks/tone/classify", json={"inputs": f"text {number}"}).raise_for_status()
                if requests.count():
                    break
                assert number < 20_000, "the page does not see them"
        expect(page.get_by_role("img", name=re.compile("^Latency"))).to_be_visible()
        assert page.locator("canvas").count() >= 3
        assert_accessible(page)
        # Another view does not end it: what was seen is there at once.
        page.get_by_role("link", name="Try").click()
        page.route("**/metrics*", lambda route: None)
        page.get_by_role("link", name="Load", exact=True).click()
        expect(page.get_by_role("figure")).to_have_count(4)
        expect(requests).to_be_visible()
