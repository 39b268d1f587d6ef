"""What versions change, upload and load in a browser, and the routes that these ask."""

import itertools
import re

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families

from browsers import PHONE, assert_accessible, needs_chromium, opened
from servers import Task, layouts, spec

TASKS = [Task(seed=1), Task(seed=2, kind="lora"), Task(seed=3)]
# Of every kind of change, several of them at one place.
MIXED = [Task(seed=4, kind="everything"), Task(seed=5, kind="everything")]
STORED = {"tone": TASKS, "mixed": MIXED, "sole": TASKS[:1]}
# What the page calls them.
KINDS = {
    "added": "Biases and gains",
    "low-rank": "Low-rank changes of weights",
    "sparse": "Single weights",
    "adapter": "Adapters",
    "scale": "Factors",
    "core": "Low-rank cores",
    "output-scale": "Factors of outputs",
}
KEPT = [("onebert_tasks",), ("onebert_http_requests_total", "onebert_http_request_seconds_bucket"), ("nothing",)]

# Notes of each time that a plot is drawn the texts that it draws: what is in a canvas is nowhere else.
DRAWN = """
window.drawn = [];
const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  this.texts = [];
  drawn.push(this.texts);
  clearRect.apply(this, box);
};
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  this.texts?.push(text);
  fillText.call(this, text, ...place);
};
"""


def matrix(task, module):
    """What a task's low-rank change adds to a module."""
    return task.tensors[f"lora_B.{module}"].astype(float) @ task.tensors[f"lora_A.{module}"].astype(float)


@layouts
def test_norms_are_those_of_what_is_stored(server):
    with httpx.Client(base_url=f"{server.url}/v1/tasks/tone/versions", timeout=180) as web:
        first, low_rank, other = (web.get(f"/{version}/changes").json()["changes"] for version in (1, 2, 3))
        between = web.get("/3/changes?against=1").json()
        # Asked again, it is the same, and its tag is of both contents.
        again = web.get("/3/changes?against=1")
        assert again.json() == between
        assert again.headers["etag"] != web.get("/3/changes").headers["etag"]
    vectors = {
        name.removeprefix("delta."): tensor for name, tensor in TASKS[0].tensors.items() if name.startswith("delta.")
    }
    assert {one["name"]: one["norm"] for one in first} == pytest.approx(
        {name: np.linalg.norm(tensor.astype(float)) for name, tensor in vectors.items()}
    )
    assert {one["name"]: one["symbol"] for one in first} == {name: spec().symbols[name] for name in vectors}
    assert {one["name"]: one["norm"] for one in low_rank} == pytest.approx(
        {one["name"]: np.linalg.norm(matrix(TASKS[1], one["name"])) for one in low_rank}
    )
    assert between["against"] == 1
    assert {one["name"]: one["norm"] for one in between["changes"]} == pytest.approx(
        {
            name: np.linalg.norm(TASKS[2].tensors[f"delta.{name}"].astype(float) - tensor.astype(float))
            for name, tensor in vectors.items()
        }
    )
    assert other != first


def test_a_version_that_is_not_there_has_no_changes(server):
    for path in ("tone/versions/9/changes", "tone/versions/1/changes?against=9"):
        answer = httpx.get(f"{server.url}/v1/tasks/{path}", timeout=180)
        assert (answer.status_code, answer.json()["code"]) == (404, "version-not-found")
    assert httpx.get(f"{server.url}/v1/tasks/tone/versions/1/changes?against=x", timeout=180).status_code == 422


@layouts
@pytest.mark.parametrize("names", KEPT)
def test_metrics_by_name_are_those_alone(server, names):
    with httpx.Client(base_url=server.url, timeout=180) as web:
        web.get("/v1/tasks")
        found = {one.name for family in read(web.get("/metrics", params={"name[]": names})) for one in family.samples}
        everything = {one.name for family in read(web.get("/metrics")) for one in family.samples}
    assert found == set(names) & everything


def read(answer):
    assert answer.status_code == 200
    return list(text_string_to_metric_families(answer.text))


def unfold(page):
    page.get_by_text("What is changed in the base").click()


def shown(page):
    """(kind, title, layer, symbol) -> length, of every heat map."""
    found = {}
    for table in page.locator(".heat").all():
        kind, title = table.locator("..").get_attribute("aria-label").rsplit(", ", 1)
        columns = table.locator("thead th").all_inner_texts()[1:]
        for row in table.locator("tbody tr").all():
            layer, values = row.locator("th").inner_text(), row.locator("td").all_inner_texts()
            for symbol, value in zip(columns, values, strict=True):
                if value != "unchanged":
                    found[kind, title, layer, symbol] = float(value)
    return found


def measured(server, task, queries):
    """The same, as the server says it; `queries` by title."""
    with httpx.Client(base_url=f"{server.url}/v1/tasks/{task}/versions/", timeout=180) as web:
        rows = [(title, one) for title, query in queries.items() for one in web.get(query).json()["changes"]]
    found = {
        (KINDS[one["kind"]], title, "–" if one["layer"] is None else str(one["layer"]), one["symbol"]): one["norm"]
        for title, one in rows
    }
    assert len(found) == len(rows)
    return found


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize(
    ("task", "one", "other", "kinds"), [("tone", 3, 1, 1), ("tone", 2, 1, 2), ("mixed", 2, 1, len(KINDS))]
)
def test_the_heat_maps_have_the_norms_each_kind_by_itself(page, server, task, one, other, kinds):
    page.goto(f"{server.url}/#/tasks/{task}?version={one}&beside={other}")
    unfold(page)
    expect(page.locator(".heat")).to_have_count(3 * kinds)
    queries = {
        f"Version {one}": f"{one}/changes",
        f"Version {other}": f"{other}/changes",
        f"Difference of {one} and {other}": f"{one}/changes?against={other}",
    }
    assert shown(page) == pytest.approx(measured(server, task, queries), rel=1e-2)
    assert_accessible(page)


@pytest.mark.slow
@needs_chromium
def test_an_only_version_has_a_heat_map_as_well(page, server):
    page.goto(f"{server.url}/#/tasks/sole")
    unfold(page)
    expect(page.locator(".heat")).to_have_count(1)
    assert shown(page) == pytest.approx(measured(server, "sole", {"Version 1": "1/changes"}), rel=1e-2)
    assert_accessible(page)


@pytest.mark.slow
@needs_chromium
def test_what_was_of_other_versions_is_gone_until_theirs_is_there(page, server):
    page.goto(f"{server.url}/#/tasks/tone?version=3&beside=1")
    unfold(page)
    expect(page.locator(".heat")).to_have_count(3)
    # Never answered.
    page.route("**/versions/2/changes", lambda route: None)
    with page.expect_request("**/versions/2/changes"):
        page.get_by_label("Version", exact=True).select_option("2")
    expect(page.locator(".heat")).to_have_count(0)
    page.get_by_label("Version", exact=True).select_option("3")
    expect(page.get_by_role("region", name="Biases and gains, Version 3")).to_be_visible()
    expect(page.locator(".heat")).to_have_count(3)


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
        said = httpx.put(url, content=b"no delta at all", headers=headers, timeout=180).json()
        alert = page.get_by_role("alert").filter(has_text=said["code"])
        expect(alert).to_contain_text(said["detail"])
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


@pytest.mark.slow
@needs_chromium
def test_each_time_under_a_plot_is_there_once(page, server):
    page.add_init_script(DRAWN)
    page.goto(f"{server.url}/#/load")
    page.reload()
    plots = []
    # One point alone has no time under it, two or more have the seconds between them.
    while not any(plots):
        # Without requests nothing is drawn.
        httpx.post(f"{server.url}/v1/tasks/tone/classify", json={"inputs": "a text"}, timeout=180)
        with page.expect_request("**/metrics*"):
            pass
        drawn = page.evaluate("drawn")
        plots = [[text for text in texts if re.fullmatch(r"\d\d:\d\d:\d\d", text)] for texts in drawn]
    assert [times for times in plots if len(times) != len(set(times))] == []
