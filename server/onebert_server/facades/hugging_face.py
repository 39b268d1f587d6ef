"""Hugging Face: `InferenceClient` and `@huggingface/inference`; one URL serves every task by its type."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from onebert_encoder.answering.asked import Asked
from onebert_server.answering.answers import Answered
from onebert_server.answering.backend import Wanted
from onebert_server.facades.facade import Call, Facade, Question, json_reply
from onebert_server.facades.reading import predicted, ranked
from onebert_server.http.lean.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.common import RequestBody
from onebert_server.http.schemas.questions import Text, TopK


class Parameters(RequestBody):
    """What may be asked of an answer."""

    top_k: TopK = None


class Inputs(RequestBody):
    """One text."""

    inputs: Text
    parameters: Parameters = Field(default_factory=Parameters)


async def answer(call: Call[Inputs]) -> Reply:
    """Answers one text by the type of its task."""
    body = call.body
    top_k = body.parameters.top_k
    wanted = Wanted([call.task()], asked=Asked(top_k))

    def render(answered: Iterator[Answered]) -> Reply:
        return json_reply([[one._asdict() for one in ranked(predicted(each), top_k)] for each in answered])

    return await call.ask(wanted, [body.inputs], render)


def worded(fault: Fault) -> tuple[int, Any]:
    """An error as Hugging Face's servers say it."""
    return fault.status, {"error": fault.sentence}


FACADE = Facade(
    "Hugging Face",
    worded,
    [Question(path, Inputs, answer, list[list[dict[str, Any]]]) for path in ("/", "/models/{model}")],
)
