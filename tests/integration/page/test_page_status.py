"""What is in force for a task, in a browser: said as the server says it, and changed by dialogs that say what ends."""

import itertools

import pytest
from playwright.sync_api import expect

from browsers import PHONE, assert_accessible, needs_chromium, opened
from servers import Task

pytestmark = [pytest.mark.slow, needs_chromium]

VERSIONS = [Task(seed=seed) for seed in range(1, 6)]
DECISION = {"thresholds": {"label 0": 0.999998, "label 1": 0.5}, "positives": ["label 1"]}
LACKING = Task(seed=6, training={"card": {"decide": {"lacks": {"precision=0.6": "no rows were held out"}}}})
# Each is changed by one test.
STORED = dict.fromkeys(("light", "dark", "gated"), VERSIONS) | {
    "judged": [*VERSIONS[:2], LACKING],
    "ruled": Task(seed=4, format=2, task_type="multi_label", decision=DECISION),
}


def alarming(seed=1):
    """A version whose reference has nearly always another label than it answers."""
    task = Task(seed=seed, labels=2)
    answered = int(task.logits("the parcel was late").argmax())
    labels = [290, 290]
    labels[answered] = 10
    scores = {"edges": [0.6, 0.8], "scores": [30, 60, 210], "confidence": 0.9}
    reference = {"split": "validation", "rows": 300, "labels": labels, "abstained": 0} | scores
    task.manifest |= {"format": 3, "reference": reference}
    return task


def target(client, task):
    """The versions that answer with their shares, and the shadows."""
    place = client.send("GET", f"/v1/tasks/{task}/aliases/live").json()
    meaning = place["target"] or {"split": {str(place["version"]): 100}}
    return meaning["split"], {shadow["version"]: shadow["percent"] for shadow in meaning.get("shadow") or []}


def expect_last_move(page, client, task):
    """The last move is shown in the server's words."""
    move = client.send("GET", f"/v1/tasks/{task}/status").json()["moves"][0]
    expect(page.get_by_role("list", name="Last moves").get_by_role("listitem").first).to_contain_text(move["what"])


def change(page, button, verb, ends="", **fields):
    """Opens a dialog, fills it, and makes the change that it says."""
    page.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        field = dialog.get_by_label(label.replace("_", " "), exact=True)
        field.select_option(value) if label == "Version" else field.fill(value)
    if ends:
        expect(dialog.get_by_text("This ends")).to_have_text(f"This ends {ends}.")
    else:
        expect(dialog.get_by_text("This ends")).to_have_count(0)
    assert_accessible(page, button)
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize(("task", "options"), [("light", {}), ("dark", {"color_scheme": "dark", "viewport": PHONE})])
def test_a_shadow_and_a_split_begin_and_end(browser, server, client, task, options):
    with opened(browser, f"{server.url}/#/tasks/{task}", **options) as page:
        live = page.get_by_role("list", name="Aliases").get_by_role("listitem").filter(has_text="live")
        change(page, "Add a shadow to live", "Add", Version="5", Percent_of_the_requests="20")
        expect(live).to_contain_text("1, shadow 5 (20 %)")
        expect_last_move(page, client, task)
        change(page, "Split live", "Split", Version="2", Percent_of_the_requests="10")
        expect(live).to_contain_text("90 % 1, 10 % 2, shadow 5 (20 %)")
        assert target(client, task) == ({"1": 90, "2": 10}, {5: 20})
        assert_accessible(page, "in force")
        # A shadow that answers from now on is no shadow any more.
        change(page, "Split live", "Split", "split 90/10 and shadow 5", Version="5", Percent_of_the_requests="30")
        assert target(client, task) == ({"1": 70, "5": 30}, {})
        change(page, "Split live", "Split", "split 70/30", Version="5", Percent_of_the_requests="40")
        assert target(client, task) == ({"1": 60, "5": 40}, {})
        change(page, "Add a shadow to live", "Add", Version="3")
        expect(live).to_contain_text("shadow 3")
        change(page, "End shadow 3 of live", "End", "shadow 3")
        change(page, "Add a shadow to live", "Add", Version="4")
        expect(page.get_by_role("listitem", name="Version 4")).to_contain_text("shadow of live")
        change(page, "Promote version 2", "Promote", "split 60/40 and shadow 4")
        expect_last_move(page, client, task)
        assert target(client, task) == ({"2": 100}, {})
        # The split comes back with its shadow, as from the command.
        change(page, "Roll live back to 60 % 1, 40 % 5, shadow 4", "Roll back")
        expect_last_move(page, client, task)
    assert target(client, task) == ({"1": 60, "5": 40}, {4: 100})


def test_a_gate_is_said_of_its_own_aliases_alone(page, server, client):
    client.send("PUT", "/v1/tasks/gated/gate", json={"rules": {"must": [{"text": "a text", "label": "label 1"}]}})
    page.goto(f"{server.url}/#/tasks/gated")
    expect(page.get_by_role("region", name="In force")).to_contain_text("0 pinned rows, of live")
    page.get_by_role("button", name="Promote version 2").click()
    dialog = page.get_by_role("dialog")
    announced = dialog.get_by_text("The gate checks it first")
    expect(announced).to_be_visible()
    dialog.get_by_label("Alias").fill("beta")
    expect(dialog).to_contain_text("is new.")
    expect(announced).to_have_count(0)


def test_a_verdict_a_reason_and_a_move_past_the_gate_are_shown(browser, server, client):
    texts = [f"text {number}" for number in range(200)]
    labels = [[f"label {task.logits(text).argmax()}" for text in texts] for task in VERSIONS[:2]]
    rows = list(zip(texts, *labels, strict=True))
    won = [(text, better) for text, worse, better in rows if better != worse][:12]
    with opened(browser, f"{server.url}/#/tasks/judged") as page:
        moves = page.get_by_role("list", name="Last moves").get_by_role("listitem")
        change(page, "Add a shadow to live", "Add", Version="2", **{"Why (optional)": "trained on May, too"})
        expect(moves.first).to_contain_text("127.0.0.1: trained on May, too")
        items = [{"task": "judged", "text": text, "label": label, "identifier": text} for text, label in won]
        client.send("POST", "/v1/feedback", json={"data": items})
        page.reload()
        shown = page.get_by_role("region", name="In force")
        expect(shown).to_contain_text("Version 2 is better beside 1, by feedback: 12 wins, 0 losses, 0 alike.")
        expect(shown).to_contain_text("Next: onebert promote judged 2")
        wrong = next(label for label in ("label 0", "label 1") if label != labels[1][0])
        client.send("PUT", "/v1/tasks/judged/gate", json={"rules": {"must": [{"text": texts[0], "label": wrong}]}})
        tag = client.send("GET", "/v1/tasks/judged/aliases/live").json()["target"]["tag"]
        body, at = {"version": 2, "force": True, "message": "it is urgent"}, {"If-Match": f'"{tag}"'}
        client.send("PUT", "/v1/tasks/judged/aliases/live", json=body, headers=at)
        page.reload()
        expect(moves.first).to_contain_text("past the gate must is 1, bound 0 127.0.0.1: it is urgent")
        expect(page.get_by_role("listitem", name="Version 3")).to_contain_text("It does not keep precision=0.6 of")
        assert_accessible(page)
        page.get_by_role("link", name="Tasks", exact=True).first.click()
        expect(page.get_by_role("link", name="judged")).to_contain_text("version 3 lacks 1 target")
        assert_accessible(page)


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "viewport": PHONE}], ids=["wide", "phone"])
def test_an_alarm_is_in_words_with_the_histogram_it_came_from(browser, server, client, options):
    if "guard" not in [share["name"] for share in client.tasks()]:
        client.push("guard", alarming().file)
    status = "/v1/tasks/guard/status"
    for number in itertools.count():
        if alarm := client.send("GET", status).json()["alarm"]:
            break
        assert number < 100, "no alarm"
        client.send("POST", "/v1/tasks/guard/classify", json={"inputs": [f"text {number} {at}" for at in range(50)]})
    with opened(browser, server.url, **options) as page:
        expect(page.get_by_text("2 need attention")).to_be_visible()
        page.get_by_role("link", name="guard").click()
        shown = page.get_by_role("region", name="Alarm")
        expect(shown).to_contain_text(alarm["words"])
        shown.get_by_text("Answers by their top score").click()
        rows = shown.get_by_role("table").locator("tbody tr")
        cells = [row.locator("td").all_inner_texts() for row in rows.all()]
        shares = [
            [count / sum(alarm["scores"][side]) for count in alarm["scores"][side]] for side in ("reference", "live")
        ]
        numbers = [[float(text.replace(" %", "").replace("<1", "0.2")) for text in pair] for pair in cells]
        assert numbers == [
            pytest.approx([100 * share for share in pair], abs=0.51) for pair in zip(*shares, strict=True)
        ]
        assert_accessible(page)


def test_an_answer_marks_the_labels_over_their_thresholds(page, server):
    text, task = "please help my order is late again", STORED["ruled"]
    page.goto(f"{server.url}/#/try?task=ruled")
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Classify").click()
    rows = page.get_by_role("article", name="ruled version 1").locator("tbody tr")
    thresholds = {"label 0": 0.999998, "label 1": 0.5, "label 2": 0.5}
    expect(rows.filter(has_text="threshold")).to_have_count(len(thresholds))
    for label, logit in zip(thresholds, task.logits(text), strict=True):
        row = rows.filter(has_text=label)
        expect(row).to_contain_text(f"threshold {thresholds[label]:g}" if label != "label 0" else "threshold 0.999998")
        over = logit > 0 if label != "label 0" else False
        expect(row.get_by_text("over its threshold")).to_have_count(int(over))
        line = row.locator(".bar b").evaluate("one => parseFloat(one.style.left) / 100")
        assert line == pytest.approx(thresholds[label])
    assert_accessible(page)
