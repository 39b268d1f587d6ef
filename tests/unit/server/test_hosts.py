"""Two bases behind one answerer, which splits a text before it knows which of them reads it."""

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


@pytest.mark.parametrize("asked", [Asked(), Asked(whole=True)], ids=["cut", "whole"])
def test_each_task_reads_by_the_tokenizer_of_its_base(parts, second, asked):
    first, other = (one.alone(ref, TEXT) for one, ref in ((parts, "good"), (second, "other")))
    assert first[1] != other[1]
    for ref, expected in (("good", first), ("other", other)):
        [answered] = parts.answer([ref], [TEXT], asked=asked)
        assert_like(answered, expected)


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
