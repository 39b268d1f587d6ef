"""Text Embeddings Inference: `/predict`, and what its clients look at."""

from collections.abc import Iterator
from typing import Any

from onebert_server.answering.answers import Answered
from onebert_server.answering.backend import Wanted
from onebert_server.facades.facade import Call, Facade, Question, json_reply
from onebert_server.facades.reading import predicted, ranked
from onebert_server.http.lean.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.common import RequestBody
from onebert_server.http.schemas.questions import Text


class Predict(RequestBody):
    """One text."""

    inputs: Text


async def predict(call: Call[Predict]) -> Reply:
    """Classifies one text."""

    def render(answered: Iterator[Answered]) -> Reply:
        found = ranked(predicted(next(answered)))
        return json_reply([{"score": one.score, "label": one.label} for one in found])

    return await call.ask(Wanted([call.task()]), [call.body.inputs], render)


def worded(fault: Fault) -> tuple[int, Any]:
    """An error as TEI says it."""
    return fault.status, {"error": fault.sentence, "error_type": "Validation"}


FACADE = Facade("TEI", worded, [Question("/predict", Predict, predict, list[dict[str, Any]])])
