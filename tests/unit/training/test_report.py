"""Reports: reading records, choosing settings, averaging, and showing the results in page and pictures."""

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from onebert_store.errors import InvalidInput
from onebert_training.report.cli import report
from onebert_training.report.page import draw, render
from onebert_training.report.records import Record, load_records
from onebert_training.report.tables import collect, results_markdown

HOSTILE = '<script>alert("$x^")</script> & | `a` 😀'


def make(method="bitfit", data="rte", seed=0, lr=1e-3, score=0.5, validation=None, **more):
    """A record as `onebert train --json` prints it, as far as a report reads it."""
    metric = more.pop("metric", "accuracy")
    rows = more.pop("train_rows", 800)
    return {
        "task": data,
        "base": "tiny",
        "method": method,
        "metric": metric,
        "validation": {metric: score if validation is None else validation},
        "test": {metric: score},
        "rows": {"train": rows, "validation": 200, "test": 300},
        "delta_parameters": {"full": 1000, "bitfit": 10}.get(method, 0),
        "head_parameters": 6,
        "percent": {"full": 100.0, "bitfit": 1.0}.get(method, 0.0),
        "learning_rate": lr,
        "seed": seed,
        "file_bytes": 4000,
        "settings": {"method": method, "seed": seed, "learning_rate": lr, "batch_size": 8, "train_rows": None},
        "data": {"name": data, "digest": "sha256:0"},
        "a key of a later version": [],
        **more,
    }


def history(offset=0.0, steps=(10, 20, 30)):
    return [
        {
            "step": step,
            "epoch": step / 10,
            "loss": 1 / step + offset,
            "validation": {"accuracy": 0.5 + offset},
            "validation_loss": 0.6 + offset,
        }
        for step in steps
    ]


def results(*records):
    return collect(Record.model_validate(record) for record in records)


def best(result, method, data):
    return next(trial for (name, column), trial in result.best.items() if name == method and column.data == data)


def write(folder, *records):
    folder.mkdir(exist_ok=True)
    for number, record in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(record))
    return folder


class Page(HTMLParser):
    """Elements, their addresses, and the text between them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses, self.texts = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data):
        self.texts.append(data)


def test_files_and_folders_are_read(tmp_path):
    folder = write(tmp_path / "runs", make(seed=0), make(seed=1))
    (folder / "0.safetensors").write_bytes(b"a delta beside its record")
    single = write(tmp_path / "more", make(seed=2)) / "0.json"
    assert [record.seed for record in load_records([folder, single, single])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        (json.dumps({**make(), "seed": "x"}), "seed: "),
        (json.dumps({k: v for k, v in make().items() if k != "method"}), "method: Field required"),
        (json.dumps({**make(), "percent": float("nan")}), "percent"),
        (json.dumps({**make(), "train": {}}), "train lacks its metric, accuracy"),
    ],
)
def test_a_bad_record_is_one_line_with_its_name(tmp_path, content, says):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(InvalidInput) as caught:
        load_records([tmp_path])
    assert caught.value.detail.startswith("bad.json is not the record of a run: ")
    assert says in caught.value.detail
    assert "\n" not in caught.value.detail
    assert str(tmp_path) not in caught.value.detail


def test_nothing_to_read_is_said(tmp_path):
    with pytest.raises(InvalidInput, match="holds no record"):
        load_records([tmp_path])
    with pytest.raises(InvalidInput, match=r"^none\.json cannot be read: No such file"):
        load_records([tmp_path / "none.json"])


def test_settings_are_chosen_on_validation_whatever_the_test_says():
    low = [make(seed=s, lr=1e-4, validation=0.7, score=0.6) for s in (0, 1)]
    high = [make(seed=s, lr=1e-3, validation=0.6, score=0.9) for s in (0, 1)]
    (result,) = results(*low, *high)
    assert best(result, "bitfit", "rte").mean == pytest.approx(60)
    assert [len(trials) for trials in result.tried.values()] == [2]


def test_of_an_error_the_lowest_is_best_and_stays_in_its_unit():
    (result,) = results(
        make(lr=1e-4, metric="mae", validation=0.2, score=0.25), make(lr=1e-3, metric="mae", validation=0.1, score=0.15)
    )
    assert best(result, "bitfit", "rte").mean == 0.15
    assert "| 0.1500 |" in results_markdown(Record.model_validate(make(metric="mae", score=0.15)) for _ in range(1))


def test_bases_metrics_splits_and_sizes_are_kept_apart():
    first, other = results(make(), make(metric="f1"), make(test=None), make(train_rows=100), make(base="another"))
    assert (first.base, len(first.columns)) == ("another", 1)
    assert (other.base, len(other.columns)) == ("tiny", 4)


def test_markdown_is_the_papers_table():
    records = [
        make("full", "cola", seed, score=score, metric="matthews") for seed, score in enumerate((0.50, 0.52))
    ] + [
        make("bitfit", "cola", score=0.534, metric="matthews"),
        make("full", "rte", score=0.656),
        make("bitfit", "rte", score=0.67),
        make("frozen", "rte", score=0.55),
    ]
    table = results_markdown(Record.model_validate(record) for record in records)
    assert table.splitlines() == [
        "| method | % of parameters | cola (matthews, test) | rte (accuracy, test) | average |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| `full` | 100.00 % | 51.0 ± 1.4 | 65.6 | 58.3 |",
        "| `bitfit` | 1.00 % | **53.4** | **67.0** | **60.2** |",
        "| `frozen` | 0.00 % | – | 55.0 | – |",
    ]


def test_page_needs_no_network_and_shows_names_as_they_are():
    (result,) = results(make(data=HOSTILE, history=history()), make(method="full", data=HOSTILE))
    page = Page(render([(result, draw(result))], [(HOSTILE, "runs/evaluated/a'b.html")]))
    assert "script" not in page.tags
    assert page.tags.count("svg") == 4  # scores, and one of each curve
    assert page.addresses == ["runs/evaluated/a%27b.html"]
    assert page.texts.count(HOSTILE) > 1


def test_a_picture_is_an_xml_file_whatever_is_in_a_name():
    name = f"{HOSTILE}\x08\x1b\uffff ]]>"
    more = {"history": history(), "train": {"accuracy": 1.0}, "change": [{"symbol": name, "layer": 0, "mean_abs": 0.1}]}
    sizes = [make(name, name, train_rows=rows, **more) for rows in (100, 800)]
    pictures = [picture for element in results(*sizes) for picture in draw(element)]
    assert len(pictures) == 7
    for picture in pictures:
        root = ElementTree.fromstring(picture.file())
        text = "".join(root.itertext()) + "".join(element.get("aria-label", "") for element in root.iter())
        assert '<script>alert("$x^")</script>' in text
        assert not any(element.tag.endswith("script") for element in root.iter())


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({}, ["scores"]),
        ({"train": {"accuracy": 1.0}}, ["scores", "gaps"]),
        ({"history": history()}, ["scores", "curves-rte-accuracy-test"]),
        ({"history": [{"step": 0, "epoch": 0, "loss": None}]}, ["scores"]),
        ({"change": [{"symbol": "b_q", "layer": 0, "mean_abs": 0.1}]}, ["scores", "change-rte-accuracy-test"]),
    ],
)
def test_only_what_records_hold_is_drawn(more, kinds):
    (result,) = results(make(**more))
    assert [picture.name for picture in draw(result)] == [f"tiny-{kind}" for kind in kinds]


def test_command_writes_page_and_pictures(tmp_path, capsys):
    folder = write(tmp_path / "runs", make(history=history()), make(seed=1, history=history(0.1)))
    report([folder], tmp_path / "out" / "here")
    names = sorted(path.name for path in (tmp_path / "out" / "here").iterdir())
    assert names == ["01-tiny-scores.svg", "02-tiny-curves-rte-accuracy-test.svg", "report.html"]
    assert capsys.readouterr().out.startswith("2 runs, 2 pictures: ")


def test_an_exact_head_has_a_strength_and_no_settings_of_steps():
    head = {"learning_rate": None, "settings": {"method": "head", "seed": 0, "train_rows": None}}
    runs = results(
        make(), make("head", strength=0.3) | head, make("head", seed=1, strength=1.0, history=history()) | head
    )
    page = Page(render([(result, draw(result)) for result in runs]))
    assert "strength 0.3 to 1 (2 seeds)" in page.texts
    assert "lr 0.001 (1 seed)" in page.texts


def test_a_run_on_rows_that_were_mended_is_left_out_and_said():
    (result,) = results(make(seed=0), make(seed=0) | {"data": {"name": "rte", "digest": "sha256:1"}})
    assert "not all runs on rte saw the same rows" in render([(result, [])])
