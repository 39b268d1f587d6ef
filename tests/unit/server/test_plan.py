"""Questions that are read alike go together, whatever versions answer them, and are cut and counted as if alone."""

from hypothesis import given
from hypothesis import strategies as st

from bases import loaded
from onebert_encoder.answering.asked import PLAIN
from onebert_encoder.text.tokenizer import CutOnce
from onebert_server.answering.plan import grouped
from onebert_server.answering.resolution import Resolved
from onebert_server.answering.tokenizing import Splitter
from onebert_server.versions.facts import Facts, Shadowing

TOKENIZER = loaded().tokenizer
SPLITTERS = {"base": Splitter(TOKENIZER, 64)}
TEXTS = ["late", "it is late " * 9, "good order", "it", " "]


def version(number, labels, room=64, shadows=None):
    facts = Facts(f"t{number}", 1, "digest", "base", "single_label", [f"l{i}" for i in range(labels)], room, "cls")
    return Resolved(facts, 0, number, 100 + number, None, not shadows, shadows)


VERSIONS = [version(0, 2), version(1, 3), version(2, 40), version(3, 2, 8), version(4, 2, 64, Shadowing((), None))]


def laid(versions, texts):
    groups = grouped(versions, PLAIN, texts, SPLITTERS)
    for questions in groups:
        questions.measure(TOKENIZER, dict(zip(texts, TOKENIZER.ids(texts), strict=True)))
        questions.cut(TOKENIZER, CutOnce())
    return groups


def seen(groups, first=0):
    """By its number, everything that a question sends, and the parts that count."""
    return {
        first + number: (version, facts_text, ids, length)
        for questions in groups
        for number, version, facts_text, ids, length in zip(
            questions.numbers,
            questions.versions,
            [(item.facts, item.text, item.tokens, item.truncated) for item in questions.items],
            questions.ids,
            questions.lengths,
            strict=True,
        )
    } | {first + number: blank for questions in groups for number, blank in questions.blank.items()}


@given(st.lists(st.tuples(st.sampled_from(VERSIONS), st.sampled_from(TEXTS)), min_size=1, max_size=20))
def test_questions_together_are_cut_and_counted_like_each_alone(asked):
    together = laid([one for one, _ in asked], [text for _, text in asked])
    alone = [laid([one], [text]) for one, text in asked]
    assert seen(together) == {n: one for first, groups in enumerate(alone) for n, one in seen(groups, first).items()}
    every_alone = [questions for groups in alone for questions in groups]
    for part in range(3):
        counts = [sum(each.counted[part] for each in every if each.counted) for every in (together, every_alone)]
        assert counts[0] == counts[1]
    # Lengths, and shadows, part them; nothing else here does.
    assert len(together) == len({(one.facts.max_length, one.shadows) for one, _ in asked})
