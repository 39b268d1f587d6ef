"""Which words an answer is owed to, over HTTP: what the plain model says of the text without each of them."""

import numpy as np
import pytest
from scipy.special import expit

import onebert
from onebert_server.limits import (
    MAX_EXPLAINED,
    MAX_EXPLAINED_CHARACTERS,
    MAX_EXPLAINED_TOKENS,
    MAX_LEFT_OUT,
    MAX_LEFT_OUT_TOKENS,
    MIN_LEFT_OUT,
)
from onebert_store.errors import InvalidInput, TooLarge
from servers import MAX_LENGTH, Task, layouts

pytestmark = layouts

WORDS = ["please", "help", "my", "order", "was", "late"]
TEXT, PAIR = " ".join(WORDS), ("where is it", "the order was late")
# Float32 sums in another order; an effect is the difference of two scores.
TOLERANCE = 2e-4


STORED = {
    "tone": Task(seed=1),
    "topic": Task("lora", labels=4, pooling="cls", seed=2),
    "several": Task("frozen", seed=5, task_type="multi_label"),
    "number": Task("frozen", labels=1, seed=6, task_type="regression"),
    "names": Task(task_type="token", pooling="none", seed=7),
    "windows": Task(seed=3, format=2, decision={"window": {"tokens": 16, "overlap": 4, "reduction": "mean"}}),
}


def ask(client, task, inputs, **options):
    body = {"inputs": inputs, "explain": True, **options}
    return client.send("POST", f"/v1/tasks/{task}/classify", json=body).json()["results"]


def shown(explanation):
    return [(word["field"], word["start"], word["end"]) for word in explanation["words"]]


def effects(explanation):
    return [word["effect"] for word in explanation["words"]]


def without_each(words):
    return [" ".join(words[:at] + words[at + 1 :]) for at in range(len(words))]


def test_an_effect_is_the_score_with_a_word_less_that_without(client):
    [result] = ask(client, "tone", TEXT, top_k=1)
    whole = STORED["tone"].scores(TEXT)
    label = max(whole, key=whole.get)
    assert list(result["scores"]) == [label]
    explanation = result["explanation"]
    assert (explanation["method"], explanation["label"]) == ("occlusion", label)
    assert [TEXT[start:end] for field, start, end in shown(explanation) if field == "text"] == WORDS
    expected = [whole[label] - STORED["tone"].scores(text)[label] for text in without_each(WORDS)]
    np.testing.assert_allclose(effects(explanation), expected, atol=TOLERANCE)
    assert max(map(abs, expected)) > 10 * TOLERANCE


def test_each_text_of_a_pair_is_left_out_of(client):
    [result] = ask(client, "topic", [{"text": PAIR[0], "text_pair": PAIR[1]}])
    halves = [half.split() for half in PAIR]
    explanation, task = result["explanation"], STORED["topic"]
    assert [PAIR[field == "text_pair"][start:end] for field, start, end in shown(explanation)] == halves[0] + halves[1]
    whole, label = task.scores(*PAIR), explanation["label"]
    changed = [(half, PAIR[1]) for half in without_each(halves[0])] + [
        (PAIR[0], half) for half in without_each(halves[1])
    ]
    np.testing.assert_allclose(
        effects(explanation), [whole[label] - task.scores(*half)[label] for half in changed], atol=TOLERANCE
    )


def test_effects_are_in_the_units_of_the_scores(client):
    several, number = STORED["several"], STORED["number"]
    [result] = ask(client, "several", TEXT)
    best = int(several.logits(TEXT).argmax())
    expected = [
        expit(several.logits(TEXT)[best]) - expit(several.logits(variant)[best]) for variant in without_each(WORDS)
    ]
    np.testing.assert_allclose(effects(result["explanation"]), expected, atol=TOLERANCE)
    [result] = ask(client, "several", TEXT, activation="none")
    expected = [several.logits(TEXT)[best] - several.logits(variant)[best] for variant in without_each(WORDS)]
    np.testing.assert_allclose(effects(result["explanation"]), expected, rtol=1e-3, atol=1e-3)
    [result] = ask(client, "number", TEXT)
    expected = [number.logits(TEXT)[0] - number.logits(variant)[0] for variant in without_each(WORDS)]
    np.testing.assert_allclose(effects(result["explanation"]), expected, rtol=1e-3, atol=1e-3)


def test_the_answer_is_the_same_without_explain(client):
    plain = client.send("POST", "/v1/tasks/tone/classify", json={"inputs": TEXT, "explain": False}).json()["results"]
    [explained] = ask(client, "tone", TEXT)
    explained.pop("explanation")
    assert plain == [explained]


def test_of_a_text_that_is_cut_only_what_is_read_is_left_out(client):
    text = " ".join(["late"] * 300)
    [result] = ask(client, "tone", text)
    assert result["truncated"] is True
    explanation = result["explanation"]
    assert MAX_LEFT_OUT_TOKENS // MAX_LENGTH // 2 < len(shown(explanation)) <= MAX_LEFT_OUT_TOKENS // MAX_LENGTH
    assert " ".join(text[start:end] for _, start, end in shown(explanation)) == " ".join(["late"] * (MAX_LENGTH - 2))
    # As many words of the same text come after them: nothing changes.
    np.testing.assert_allclose(effects(explanation), 0, atol=TOLERANCE)


def test_many_words_go_together_and_cover_what_windows_read(client):
    words = [WORDS[at % len(WORDS)] for at in range(100)]
    text = " ".join(words)
    [result] = ask(client, "windows", text)
    assert (result["truncated"], result["windows"] > 6) == (False, True)
    of_words = shown(result["explanation"])
    assert MIN_LEFT_OUT < len(of_words) <= MAX_LEFT_OUT_TOKENS // (16 * result["windows"])
    assert " ".join(text[start:end] for _, start, end in of_words) == text
    _, start, end = of_words[5]
    left = client.classify("windows", text[:start] + text[end + 1 :])["results"][0]
    label = result["label"]
    effect = result["scores"][label] - left["scores"][label]
    assert effects(result["explanation"])[5] == pytest.approx(effect, abs=1e-6)


def test_of_long_texts_more_words_go_together(client):
    """A document is explained, if by few stretches, and a short text beside it by words where that costs nothing."""
    document = " ".join(WORDS * 2100)
    assert len(document) * MAX_LEFT_OUT > 2 * MAX_EXPLAINED_CHARACTERS
    few, words = (result["explanation"] for result in ask(client, "tone", [document, TEXT]))
    assert MIN_LEFT_OUT <= len(shown(few)) <= MAX_EXPLAINED_CHARACTERS // len(document)
    read = " ".join(document.split()[: MAX_LENGTH - 2])
    assert " ".join(document[start:end] for _, start, end in shown(few)) == read
    assert len(shown(words)) == len(WORDS)


def test_a_text_of_one_word_has_nothing_to_leave_out(client):
    results = ask(client, "tone", ["late", {"text": "late", "text_pair": "order was"}])
    assert [shown(result["explanation"]) for result in results] == [[], [("text_pair", 0, 5), ("text_pair", 6, 9)]]


def test_what_is_not_about_a_whole_text_is_not_explained(client):
    with pytest.raises(InvalidInput, match="names@1 is a token task, whose answers are not explained"):
        ask(client, "names", TEXT)


def test_an_explanation_costs_no_more_than_is_bounded(client):
    assert len(ask(client, "tone", [TEXT] * MAX_EXPLAINED)) == MAX_EXPLAINED
    with pytest.raises(InvalidInput, match=f"at most {MAX_EXPLAINED} inputs"):
        ask(client, "tone", [TEXT] * (MAX_EXPLAINED + 1))
    long = "late order " * (MAX_EXPLAINED_CHARACTERS // MIN_LEFT_OUT // 2 // 11)
    with pytest.raises(TooLarge, match="ask to explain fewer"):
        ask(client, "tone", [long, f"my {long}", f"our {long}"])
    windows = MAX_EXPLAINED_TOKENS // MIN_LEFT_OUT // MAX_LENGTH + 1
    with pytest.raises(TooLarge, match=f"over {MAX_EXPLAINED_TOKENS} tokens"):
        ask(client, "tone", " ".join(["late"] * windows * MAX_LENGTH), window={})
    with pytest.raises(InvalidInput, match="explain"):
        client.send("POST", "/v1/classify", json={"items": [{"task": "tone", "text": TEXT}], "explain": True})


def test_the_client_explains_any_number_of_texts(server):
    texts = [f"{word} {TEXT}" for word in WORDS] * 4
    with onebert.Client(server.url) as web:
        answers = web.classify("tone", texts, explain=True)
    assert len(answers) == len(texts) > MAX_EXPLAINED
    for text, result in zip(texts, answers, strict=True):
        assert result.explanation is not None
        assert [text[word.start : word.end] for word in result.explanation.words] == text.split()
        assert result.explanation.label == result.label
    assert onebert.as_dict(answers[0])["explanation"]["method"] == "occlusion"
