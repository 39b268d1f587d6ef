"""Pages of reports in a real browser, opened as files: nothing is loaded, nothing is hidden, nothing is wider."""

import json

import pytest

from bases import tiny_base
from browsers import PHONE, WIDE, assert_accessible, needs_chromium, opened
from insight_records import HOSTILE, page_of
from onebert_encoder.base.base import load_base
from onebert_training.report.page import draw, render
from onebert_training.report.records import Record
from onebert_training.report.tables import collect

pytestmark = [pytest.mark.slow, needs_chromium]

TASKS = {
    "three labels": ("single_label", ["refund", HOSTILE, "a label of many words that says what it is about"]),
    "many labels": ("single_label", [f"label {i}" for i in range(40)]),
    "several labels": ("multi_label", ["late", "lost", HOSTILE]),
    "numbers": ("regression", ["score"]),
    "entities": ("token", ["O", "B-thing", "I-thing", "B-place", "I-place"]),
    "answers": ("span", ["start", "end"]),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    base, folder = load_base(str(tiny_base())), tmp_path_factory.mktemp("pages")
    made = {name: page_of(base, folder, *task) for name, task in TASKS.items()}
    made["runs"] = folder / "report.html"
    made["runs"].write_text(runs_page(), encoding="utf-8")
    return made


def runs_page():
    """Eight methods, two of them in three sizes, three seeds, on three data sets."""
    records = []
    for number, method in enumerate(("full", "bitfit", "layernorm", "lora:8", "adapter:16", HOSTILE, "f", "frozen")):
        for data, rows in [("tone", 100), ("tone", 400), ("tone", 2500), ("mood", 300), ("x" * 60, 40)]:
            records += [_record(method, number, data, rows, seed) for seed in range(3)]
    results = collect(map(Record.model_validate, records))
    return render([(result, draw(result)) for result in results], [("tone, accuracy: bitfit", "runs/evaluated/a.html")])


def _record(method, number, data, rows, seed):
    score = 0.9 - 0.02 * number - 10 / rows + 0.01 * seed
    history = [
        {
            "step": s,
            "epoch": s / 10,
            "loss": 1 / (s + 1),
            "validation": {"accuracy": score - 1 / s},
            "validation_loss": 0.4,
        }
        for s in (10, 20, 30)
    ]
    change = [{"symbol": s, "layer": i, "mean_abs": 0.01 * (i + number)} for s in ("b_q", "b_m3") for i in range(6)]
    return {
        **{"task": data, "base": "tiny", "method": method, "metric": "accuracy", "seed": seed, "best_step": 20},
        **{"validation": {"accuracy": score}, "test": {"accuracy": score}, "train": {"accuracy": score + 0.05}},
        **{"rows": {"train": rows}, "delta_parameters": 1000 - number, "percent": 1.0, "learning_rate": 1e-3},
        **{"data": {"name": data}, "history": history, "change": change},
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("name", [*TASKS, "runs"])
def test_a_page_is_accessible_on_every_screen(browser, pages, name, size, scheme):
    with opened(browser, pages[name].as_uri(), viewport=size, color_scheme=scheme) as page:
        for summary in page.locator("summary").all():
            summary.click()
        assert_accessible(page, name)


def test_what_is_said_of_a_delta_can_be_taken_along(browser, pages):
    with opened(browser, pages["three labels"].as_uri(), accept_downloads=True) as page:
        with page.expect_download() as started:
            page.get_by_role("link", name="tickets.json").click()
        record = json.loads(started.value.path().read_text(encoding="utf-8"))
        assert page.get_by_role("link", name="tickets.safetensors").get_attribute("href") == "tickets.safetensors"
        assert f"{100 * record['metrics']['accuracy']:.1f} %" == page.locator(".lead b").inner_text()
        rows = page.get_by_role("listitem").all_inner_texts()
        assert [row["text"] for row in record["worst"]] == [row.split("\n")[0] for row in rows]
        assert HOSTILE in page.locator("table").all_inner_texts()[-2]
