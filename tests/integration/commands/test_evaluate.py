"""`onebert evaluate`: the numbers, the rows beside what is answered, and the page, as a user asks for them."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.metrics import classification_report, confusion_matrix, roc_auc_score

import onebert as api
from bases import tiny_base
from ended import refused, succeeded
from insight_records import HOSTILE, delta_of
from onebert_encoder.base.base import load_base
from onebert_store.file.delta import Delta
from onebert_store.file.fingerprint import fingerprint_of
from onebert_store.file.format import load, save
from written import read_rows

LABELS = ["good", "bad", HOSTILE]
THINGS = ("parcel", "order", "invoice", "password", "screen")


@pytest.fixture(scope="module")
def base():
    return load_base(str(tiny_base()))


@pytest.fixture(scope="module")
def rows():
    drawn = np.random.default_rng(0).integers(3, size=90).tolist()
    return [
        {"id": i, "text": f"the {THINGS[i % 5]} is {i}", "label": LABELS[drawn[i]], "day": f"{i % 4}", "n": i / 2}
        for i in range(90)
    ]


@pytest.fixture
def evaluate(onebert, base, rows, tmp_path):
    """Evaluates a delta that answers as it likes on the rows as JSON lines."""
    save(tmp_path / "tone.safetensors", delta_of(base, "single_label", LABELS))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*options):
        data = ("--data", tmp_path / "rows.jsonl", "--base", tiny_base(), "--device", "cpu")
        return onebert("evaluate", tmp_path / "tone.safetensors", *data, *options)

    return run


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_rows_are_written_with_what_is_answered_and_json_says_what_follows_from_them(evaluate, rows, tmp_path, ending):
    out = tmp_path / f"out{ending}"
    printed, _ = succeeded(evaluate("--json", "--predictions", out, "--slice", "day", "--slice", "N"))
    record, written = json.loads(printed), read_rows(out)
    assert [row["text"] for row in written] == [row["text"] for row in rows]
    assert [float(row["n"]) for row in written] == [row["n"] for row in rows]
    gold, answers = ([row[f"tone_{name}"] for row in written] for name in ("gold", "answer"))
    assert gold == [row["label"] for row in rows]
    loss = np.array([float(row["tone_loss"]) for row in written])
    right = np.array(gold) == np.array(answers)
    # Where the answer is right its loss is minus the logarithm of its score.
    scores = np.array([float(row["tone_score"]) for row in written])
    assert loss[right] == pytest.approx(-np.log(scores[right]), rel=1e-4)

    assert record["metrics"]["accuracy"] == pytest.approx(right.mean())
    report = classification_report(gold, answers, output_dict=True, zero_division=0)
    for entry in record["classes"]["shown"]:
        assert entry["f1"]["value"] == pytest.approx(report[entry["label"]]["f1-score"])
    assert record["confusion"]["matrix"] == confusion_matrix(gold, answers, labels=LABELS).tolist()
    by_day = {entry["value"]: entry["score"] for entry in record["slices"][0]["values"]}
    assert by_day == {str(day): pytest.approx(right[day::4].mean()) for day in range(4)}
    bins = [entry["rows"] for entry in record["slices"][1]["values"]]
    assert (sum(bins), len(bins)) == (90, 5)
    assert set(bins) <= {17, 18, 19}
    worst = np.sort(loss)[::-1][:20]
    assert [entry["loss"] for entry in record["worst"]] == pytest.approx(worst)
    assert record["yardsticks"][0]["metrics"]["accuracy"] == max(gold.count(label) for label in LABELS) / 90


def test_the_page_loads_nothing_and_shows_texts_as_they_are(evaluate, tmp_path):
    (tmp_path / "there").mkdir()
    printed, _ = succeeded(evaluate("--report", tmp_path / "there" / "tone.html", "--slice", "day"))
    assert f"written: {tmp_path / 'there' / 'tone.html'}" in printed
    html = (tmp_path / "there" / "tone.html").read_text(encoding="utf-8")
    seen = {"script": [], "address": []}

    class Elements(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag in ("script", "link", "iframe", "img", "object", "form"):
                seen["script"].append(tag)
            seen["address"] += [value for name, value in attributes if name in ("href", "src", "xlink:href")]

    Elements().feed(html)
    assert seen["script"] == []
    delta, numbers = seen["address"]
    assert delta == "../tone.safetensors"
    assert numbers.startswith("data:application/json;base64,")
    assert "default-src 'none'" in html
    for words in ("--slice day", "sha256:", "By day", "ECE", "single_label"):
        assert words in html, words


def test_the_head_of_the_training_stands_beside_its_own_rows_alone(onebert, base, rows, tmp_path):
    made = delta_of(base, "single_label", LABELS)
    for folder, lines in (("mine", rows), ("others", rows[1:])):
        (tmp_path / folder).mkdir()
        for split in ("train", "validation"):
            (tmp_path / folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    common = ("--base", tiny_base(), "--device", "cpu", "--json", "--data")
    training = {"metric": "accuracy", "yardsticks": {"head": {"validation": 0.25}}}
    head = {"name": "head alone, in training", "metrics": {"accuracy": 0.25}}
    for folder in ("mine", "others"):
        save(tmp_path / "x.safetensors", Delta(made.manifest.model_copy(update={"training": training}), made.tensors))
        record = json.loads(succeeded(onebert("evaluate", tmp_path / "x.safetensors", *common, tmp_path / folder))[0])
        assert (head in record["yardsticks"]) == ("data" in training and folder == "mine")
        training = training | {"data": training.get("data") or {"measured": {"validation": record["data"]["digest"]}}}
    save(tmp_path / "x.safetensors", Delta(made.manifest.model_copy(update={"training": training}), made.tensors))
    record = json.loads(succeeded(onebert("evaluate", tmp_path / "x.safetensors", *common, tmp_path / "mine"))[0])
    assert head in record["yardsticks"]


def test_rows_that_were_trained_on_are_known_by_their_texts_and_not_in_the_reference(onebert, base, rows, tmp_path):
    made = delta_of(base, "single_label", LABELS)
    trained = {row["text"] for row in rows[:30]}
    learned = sum(row["text"] in trained for row in rows)
    training = {"data": {"name": "others.jsonl"}, "fingerprint": fingerprint_of(trained, base.spec.digest)}
    manifest = made.manifest.model_copy(update={"max_length": 5, "training": training})
    save(tmp_path / "tone.safetensors", Delta(manifest, made.tensors))
    common = (tmp_path / "tone.safetensors", "--base", tiny_base(), "--device", "cpu", "--json", "--data")
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    decides = ("--target", "coverage=0.5")
    for command, told, options in (("evaluate", "warnings", ()), ("calibrate", "notes", decides)):
        record = json.loads(succeeded(onebert(command, *common, tmp_path / "mine.jsonl", *options))[0])
        notes = " ".join(record[told])
        assert record["trained_on"] == learned
        assert f"{learned} of 90 rows have texts that the version was trained on: they are not held out" in notes
        assert "90 texts are truncated to 5 tokens" in notes
    calibrated = load(tmp_path / "tone-calibrated.safetensors").manifest
    assert calibrated.reference.rows == 90 - learned
    unseen = [row for row in rows if row["text"] not in trained]
    (tmp_path / "others.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unseen))
    record = json.loads(succeeded(onebert("evaluate", *common, tmp_path / "others.jsonl"))[0])
    assert (record["trained_on"], "trained on" in " ".join(record["warnings"])) == (0, False)


def test_rows_that_it_was_calibrated_on_are_said(onebert, base, rows, tmp_path):
    save(tmp_path / "tone.safetensors", delta_of(base, "single_label", LABELS))
    lines = [json.dumps(row) + "\n" for row in rows]
    for folder, name, written in (("a", "mine", lines), ("a", "copy", lines), ("b", "mine", lines[9:])):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.jsonl").write_text("".join(written))
    common = ("--base", tiny_base(), "--device", "cpu", "--json", "--data")
    asked = ("--target", "coverage=0.5")
    succeeded(onebert("calibrate", tmp_path / "tone.safetensors", *asked, *common, tmp_path / "a" / "mine.jsonl"))
    says = "calibrated on these rows"
    for name, warned in (("a/mine", True), ("a/copy", True), ("b/mine", False)):
        _, printed, _ = onebert(
            "evaluate", tmp_path / "tone-calibrated.safetensors", *common, tmp_path / f"{name}.jsonl"
        )
        assert any(says in warning for warning in json.loads(printed)["warnings"]) == warned


def test_what_a_file_decides_by_is_said_with_the_share_that_is_answered(evaluate, base, rows, tmp_path):
    out = tmp_path / "out.jsonl"
    printed, _ = succeeded(evaluate("--predictions", out))
    assert "answered" not in printed
    below = float(np.median([row["tone_score"] for row in read_rows(out)]))
    decision = {"temperature": 1.0, "thresholds": {"good": 0.75, "bad": 0.5}, "abstain": {"below": below}}
    save(tmp_path / "tone.safetensors", delta_of(base, "single_label", LABELS, decision))
    printed, _ = succeeded(evaluate("--predictions", out))
    answered = [row for row in read_rows(out) if not row["tone_abstained"]]
    assert 0 < len(answered) < len(rows)
    right = np.mean([row["tone_gold"] == row["tone_answer"] for row in answered])
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "temperature 1" in lines
    assert "thresholds bad 0.5, good 0.75" in lines
    assert f"abstains below {below:.6g}" in lines
    assert f"answered {100 * len(answered) / len(rows):.1f} % of the rows, of these accuracy {right:.4f}" in lines


def test_texts_of_no_label_are_told_from_the_rows(evaluate, rows, tmp_path):
    others = [f"? ! {i % 7} . -" for i in range(40)]
    (tmp_path / "others.csv").write_text("text\n" + "\n".join(others) + "\n")
    printed, _ = succeeded(evaluate("--unknown", tmp_path / "others.csv", "--json"))
    unknown = json.loads(printed)["unknown"]
    model = api.load(tmp_path / "tone.safetensors", base=str(tiny_base()), device="cpu")
    texts = [row["text"] for row in rows] + others
    best = np.array([max(result.scores.values()) for result in model.classify(texts)])
    known = np.arange(len(texts)) < len(rows)
    assert unknown["texts"] == 40
    # Texts are computed in other company there: two scores may change places in their last bits.
    assert unknown["probability"]["auroc"] == pytest.approx(roc_auc_score(known, best), abs=1e-3)
    # Of 90 rows and a new one, the new one is below the fourth lowest with probability 4 / 91, and 5 / 91 is too much.
    cut = np.sort(best[known])[3]
    assert unknown["probability"]["let_through"] == pytest.approx((best[~known] >= cut).mean(), abs=1 / 40)
    printed, _ = succeeded(evaluate("--unknown", tmp_path / "others.csv", "--report", tmp_path / "page.html"))
    assert f"unknown by energy AUROC {unknown['energy']['auroc']:.3f}, " in " ".join(printed.split())
    assert "Texts of no label" in (tmp_path / "page.html").read_text(encoding="utf-8")
    # A text per line needs no column.
    (tmp_path / "others.txt").write_text("\n\n".join(others) + "\n")
    printed, _ = succeeded(evaluate("--unknown", tmp_path / "others.txt", "--json", "--text", "text"))
    assert json.loads(printed)["unknown"] == unknown
    # The columns that are named are those of the labeled rows; other texts need not have them.
    (tmp_path / "others.csv").write_text("Text\n" + "\n".join(others) + "\n")
    named_rows = (tmp_path / "rows.jsonl").read_text().replace('"text"', '"Customer message"')
    (tmp_path / "named.jsonl").write_text(named_rows)
    named = ("--data", tmp_path / "named.jsonl", "--text", "customer message")
    printed, _ = succeeded(evaluate(*named, "--unknown", tmp_path / "others.csv", "--json"))
    assert json.loads(printed)["unknown"] == unknown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--unknown", "others.csv", "--report", "others.csv"], "--report is a file that is read"),
        (["--slice", "weekday"], "--slice: no column weekday (the columns are id, text, label, day, n)"),
        (["--predictions", "out.xlsx"], "--predictions ends in one of .csv, .jsonl, .parquet"),
        (["--report", "nowhere/page.html"], "--report: there is no folder nowhere"),
        (["--report", "."], "--report: . is a folder; it names the file to write"),
        (["--predictions", "rows.jsonl"], "--predictions is a file that is read"),
        (["--report", "tone.safetensors"], "--report is a file that is read"),
    ],
)
def test_what_could_not_be_written_is_one_line_before_anything_slow(evaluate, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others.csv").write_text("text\nnothing of this\n")
    before = sorted(tmp_path.iterdir())
    error = refused(evaluate(*options))
    assert error.splitlines()[-1] == f"error: {says}"
    assert sorted(tmp_path.iterdir()) == before


def test_a_column_of_the_data_is_never_written_over(onebert, evaluate, tmp_path, base):
    evaluate("--predictions", tmp_path / "once.csv")
    again = ("--data", tmp_path / "once.csv", "--label", "label", "--base", tiny_base(), "--device", "cpu")
    status, _, error = onebert("evaluate", tmp_path / "tone.safetensors", *again, "--predictions", tmp_path / "2.csv")
    assert status == 1
    assert "two columns would be called tone_gold" in error
    save(tmp_path / "other.safetensors", delta_of(base, "single_label", LABELS))
    succeeded(onebert("evaluate", tmp_path / "other.safetensors", *again, "--predictions", tmp_path / "2.csv"))
    assert {"tone_answer", "other_answer"} <= read_rows(tmp_path / "2.csv")[0].keys()
