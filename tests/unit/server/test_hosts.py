"""Two bases behind one answerer: texts are split before a reference is resolved, so the splitting base is a guess."""

import pytest

from bases import loaded
from onebert_encoder.answering.asked import Asked
from onebert_server.answering.answers import Answered
from onebert_server.answering.backend import Wanted
from onebert_store.errors import OneBertError
from parts import Parts, assert_like, context, same

# The tokenizers of the two bases make other numbers of tokens of it.
TEXT = "it is late"


@pytest.fixture
def second(parts, tmp_path):
    """Another base with its tasks; its task `other` is shown beside those of the first."""
    with Parts(loaded("roberta"), str(tmp_path / "second"), False) as made:
        made.directory = parts.directory
        made.add("other")
        parts.hosts.append(made.host)
        yield made


def questions(parts, monkeypatch):
    """What the engines are asked, by the bases that split it."""
    asked = []
    compute = parts.residents.ready

    async def counted(held, context):
        asked.append([version.entry.task for versions in held for version in versions])
        await compute(held, context)

    monkeypatch.setattr(parts.residents, "ready", counted)
    return asked


@pytest.mark.parametrize("asked", [Asked(), Asked(whole=True)], ids=["cut", "whole"])
def test_a_wrong_guess_is_mended_and_not_made_again(parts, second, monkeypatch, asked):
    computed = questions(parts, monkeypatch)

    async def ask(answerer):
        return [
            await answerer.answer(context(), Wanted([ref], asked=asked), [TEXT], same)
            for ref in ("good", "other", "other", "good")
        ]

    answers = parts.run(ask)
    first, other = (one.alone(ref, TEXT) for one, ref in ((parts, "good"), (second, "other")))
    assert first[1] != other[1]
    for [answered], expected in zip(answers, (first, other, other, first), strict=True):
        assert_like(answered, expected)
    # The first question about `other` is put twice.
    assert computed == [["good"], ["other"], ["other"], ["other"], ["good"]]


def test_questions_that_fail_alone_may_be_of_several_bases(parts, second):
    refs, texts = ["other", "good", "gone"], [TEXT] * 3

    async def ask(answerer):
        return await answerer.answer_each(context(), Wanted(refs), texts, same)

    other, good, gone = parts.run(ask)
    assert_like(other, second.alone("other", TEXT))
    assert_like(good, parts.alone("good", TEXT))
    assert gone.error.code == "task-not-found"


def test_one_request_about_several_bases_is_refused(parts, second):
    with pytest.raises(OneBertError, match="send one request for each base") as refused:
        parts.answer(["other", "good"], [TEXT] * 2)
    assert refused.value.code == "invalid-input"


def test_an_explanation_reads_by_the_base_that_answered(parts, second):
    async def ask(answerer):
        return await answerer.answer_explained(context(), Wanted(["other"]), [TEXT], same)

    [answered] = parts.run(ask)
    assert isinstance(answered, Answered)
    assert_like(answered, second.alone("other", TEXT))
    assert answered.explanation is not None
