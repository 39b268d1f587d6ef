"""Model cards: read back by the Hub's own library, and as a browser would show them."""

from html.parser import HTMLParser

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from onebert_store.command.card import render_card
from tiny_delta import make_delta

NASTY = [
    "a|b",
    "`code`",
    "<script>alert(1)</script>",
    "[x](javascript:1)",
    "![i](http://e.x/p.png)",
    "*bold* _it_ ~~no~~ &amp; # $x$",
    "back\\slash\\|pipe",
    "https://evil.example www.evil.example me@evil.example",
    "1. 日本 ✓ - +",
    "'\"{{ x }} %}",
]
TRAINING = {
    "task": "tone",
    "data": {"name": "review-tone", "digest": "sha256:" + "cd" * 32, "rows": {"train": 180, "validation": 20}},
    "seed": 0,
    "learning_rate": 0.001,
    "metric": "accuracy",
    "validation": {"macro_f1": 0.81, "accuracy": 0.85},
    "test": {"macro_f1": 0.79, "accuracy": 0.84},
    "yardsticks": {"constant": {"validation": 0.4, "test": 0.41}, "head": {"validation": 0.8, "test": 0.78}},
    "parameters": {"delta": 1000, "percent": 0.1},
}


class Page(HTMLParser):
    """The cells and headings of a page, as text, and the names of its elements."""

    def __init__(self, html):
        super().__init__()
        self.cells, self.headings, self.tags, self.into = [], [], set(), None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        found = {"td": self.cells, "th": self.cells, "h1": self.headings, "h2": self.headings, "li": self.cells}.get(
            tag
        )
        if found is not None:
            found.append("")
            self.into = found

    def handle_endtag(self, tag):
        if tag in ("td", "th", "h1", "h2", "li"):
            self.into = None

    def handle_data(self, data):
        if self.into is not None:
            self.into[-1] += data


def card_of(delta, task=None):
    """The card by the Hub's library, and its page; HTML that is written into it would be in the page."""
    text = render_card(delta, "tone.safetensors", 4321, task)
    card = ModelCard(text)
    return card, Page(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(card.text))


def test_the_hub_reads_the_front_matter_and_writes_it_again():
    delta = make_delta(training=TRAINING)
    text = render_card(delta, "tone.safetensors", 4321)
    card = ModelCard(text)
    assert str(card) == text
    data = card.data
    assert (data.library_name, data.base_model, data.datasets) == ("onebert", "tiny", None)
    assert (data.model_name, data.pipeline_tag, data.license) == ("tone", "text-classification", None)
    assert data.metrics == ["accuracy", "f1"]
    measured = {(one.dataset_split, one.metric_name): (one.metric_type, one.metric_value) for one in data.eval_results}
    assert measured == {
        ("validation", "accuracy"): ("accuracy", 0.85),
        ("validation", "macro_f1"): ("f1", 0.81),
        ("test", "accuracy"): ("accuracy", 0.84),
        ("test", "macro_f1"): ("f1", 0.79),
    }


@pytest.mark.parametrize(("name", "datasets"), [("owner/set", ["owner/set"]), ("imdb", None), ("../x/y", None)])
def test_a_card_names_a_data_set_of_the_hub_alone(name, datasets):
    """Of a file or a folder the trainer writes the bare name, which on the Hub may be anybody's."""
    card, _ = card_of(make_delta(training={**TRAINING, "data": {"name": name}}))
    assert card.data.datasets == datasets
    assert card.data.eval_results[0].dataset_name == name


def test_the_page_says_what_the_file_says():
    decision = {"temperature": 1.5, "thresholds": {"yes": 0.7}, "positives": ["yes"], "abstain": {"below": 0.4}}
    _, page = card_of(make_delta(training=TRAINING, format=2, decision=decision))
    assert page.headings == [
        *("tone", "What it is", "How to use it", "Labels", "Training data", "Settings", "Scores"),
        *("How answers are decided", "Limitations"),
    ]
    cells = " / ".join(page.cells)
    assert " / review-tone / " in cells
    assert " / rows train / 180 / " in cells
    assert " / accuracy (decides) / 0.8500 / 0.8400 / macro_f1 / 0.8100 / 0.7900 / " in cells
    assert " / accuracy of an answer that never changes / 0.4000 / 0.4100 / " in cells
    assert " / accuracy of an exact head alone on the frozen base / 0.8000 / 0.7800 / " in cells
    assert " / yes / 0.7 / yes / " in cells
    assert " / abstain below / 0.4 / " in cells
    assert "4,321 bytes" in cells
    # It has a temperature, and may say that it does not know.
    assert "calibrated" not in cells
    assert "none of them fits" not in cells


RATE = {"here": 0.02504, "low": 0.0, "high": 0.0917}
CALIBRATION = {
    "of": "sha256:" + "ab" * 32,
    "data": {"name": "may", "digest": "sha256:" + "ef" * 32},
    "split": "all",
    "rows": 120,
    "temperature": {"before": 1.0, "fitted": 1.02, "taken": False, "calibrated": True},
    "thresholds": {"target": "fpr=0.05", "all": {"fpr": RATE, "precision": {"here": None, "low": None, "high": None}}},
}


def test_a_calibration_is_a_section_with_its_target_and_intervals():
    decision = {"thresholds": {"yes": 0.7}}
    calibrated = make_delta(training={**TRAINING, "calibration": CALIBRATION}, format=2, decision=decision)
    _, page = card_of(calibrated)
    assert "Calibration" in page.headings
    cells = " / ".join(page.cells)
    assert " / thresholds target / fpr=0.05 / " in cells
    assert " / thresholds all fpr / 0.02504 (new rows: 0 to 0.0917) / " in cells
    assert " / thresholds all precision / – / " in cells
    assert " / rows / 120 / " in cells
    # The temperature was looked for, and the one that there is kept.
    assert "probabilities are calibrated" not in cells
    assert "on the rows of its calibration no temperature was better" in cells
    for said in ({**CALIBRATION["temperature"], "calibrated": False}, None, "1.02"):
        training = {**TRAINING, "calibration": {**CALIBRATION, "temperature": said}}
        _, page = card_of(make_delta(training=training, format=2, decision=decision))
        assert "Nothing in the file says that its probabilities are calibrated." in page.cells


def test_scores_of_folds_are_not_called_those_of_a_validation_split():
    few = {name: value for name, value in TRAINING.items() if name != "test"} | {"folds": 5}
    card, page = card_of(make_delta(training=few))
    assert {one.dataset_split for one in card.data.eval_results} == {"5 folds"}
    cells = " / ".join(page.cells)
    assert " / 5 folds / accuracy (decides) / 0.8500 / " in cells
    assert " / validation / accuracy" not in cells


def test_a_task_on_pairs_is_asked_for_pairs():
    of_pairs = {**TRAINING, "data": {"name": "questions", "pairs": True}}
    card, _ = card_of(make_delta(training=of_pairs))
    assert 'onebert classify tone --pair "a text" "another text"' in card.text
    assert "one label of a pair of texts" in card.text
    card, _ = card_of(make_delta(training=TRAINING))
    assert 'onebert classify tone "a text"' in card.text


def test_numbers_that_decide_are_those_of_the_file():
    """A threshold of 1 lets nothing through, and one that rounds to it does."""
    decision = {"temperature": 1.2345678, "thresholds": {"no": 1.0, "yes": 0.99996}, "abstain": {"below": 0.123456}}
    delta = make_delta(training=TRAINING, format=2, decision=decision)
    _, page = card_of(delta)
    cells = " / ".join(page.cells)
    for shown in (" / no / 1.0 / ", " / yes / 0.99996 / ", " / temperature / 1.2345678 / ", " below / 0.123456 / "):
        assert shown in cells


def test_somebodys_text_is_shown_as_it_is():
    """Labels, names and settings that look like Markdown, HTML, links, YAML."""
    training = {
        **TRAINING,
        "task": "not a name | <b>",
        "data": {"name": "x: [y\n---\n# z", "note": "| a | b |\n\n# heading"},
        "<img src=x onerror=alert(1)>": "![x](y)",
        "warnings": ["never answers <b>'x|y'</b>"],
        "validation": {"a|<i>\n---\nb": 0.5, "accuracy": True, "nested": {"x": 1}},
        "test": "none",
        "yardsticks": ["none"],
    }
    delta = make_delta(labels=NASTY, method="<h1>|`m`", training=training)
    card, page = card_of(delta, task="tone")
    assert page.tags <= {"h1", "h2", "p", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    assert set(NASTY) <= set(page.cells)
    assert {"<h1>|`m`", "![x](y)", "The trainer says: never answers <b>'x|y'</b>"} <= set(page.cells)
    assert len(page.headings) == 8
    # Every row of a table has as many cells as its head.
    assert "a|<i>?---?b" in page.cells
    assert card.data.datasets is None
    assert [one.metric_value for one in card.data.eval_results] == [0.5]
    assert yaml.safe_load(card.data.to_yaml())["tags"] == ["onebert"]


@pytest.mark.parametrize("training", [{}, {"data": None, "metric": 3, "validation": []}])
def test_a_file_that_says_nothing_of_its_training_has_a_card(training):
    card, page = card_of(make_delta(training=training))
    assert card.data.eval_results is None
    assert "Scores" not in page.headings
    assert "The file holds no scores." in page.cells
    assert page.headings[0] == "tone"


def test_many_labels_are_cut():
    _, page = card_of(make_delta(labels=[f"label {n}" for n in range(400)]))
    assert "label 99" in page.cells
    assert "label 100" not in page.cells
