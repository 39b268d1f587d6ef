"""Texts to vectors by a base itself, for the façades of servers of embeddings."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from onebert_encoder.answering.asked import NUMBERS, Asked
from onebert_encoder.base.sentence import unit
from onebert_server.answering.gateway import BARE
from onebert_server.answering.many import ask_many
from onebert_server.answering.reading import Answered
from onebert_server.facades.facade import Call, predicted
from onebert_server.http.decoding import Positive
from onebert_server.http.schemas.questions import Text
from onebert_server.limits import MAX_FANOUT
from onebert_store.errors import InvalidInput, OneBertError, TaskNotFound

EMPTY = "inputs cannot be empty"
_ASKED = Asked(wording=NUMBERS)


Inputs = Text | Annotated[list[Text], Meta(max_length=MAX_FANOUT)]
Dimensions = Annotated[
    Positive | None, Meta(description="the first so many numbers of each vector, whose length is 1 again")
]


class Vector(NamedTuple):
    """The vector of a text as a client's format writes it, by the base of this name, and the tokens that it is of."""

    written: Any
    base: str
    tokens: int


async def vectors_of(
    call: Call[Any],
    texts: Sequence[str],
    write: Callable[[int, NDArray[np.float32]], Any],
    dimensions: int | None,
    named: str = "",
    normalize: bool | None = None,
    truncate: bool = True,
) -> list[Vector]:
    """Makes the vector of each text by the base in the path, or else `named`; None normalizes as the base's files say.

    Raises InvalidInput without texts, for two bases, for one without vectors, for more `dimensions` than it has, and,
    unless texts are to be truncated, for one that is too long; TaskNotFound for another base.
    """
    if not texts:
        raise InvalidInput(EMPTY)
    ref = await _ref(call, call.parameters.get("task", ""), named)

    def show(index: int, answered: Answered) -> Vector:
        reading, facts = answered.read(), answered.facts
        if reading.truncated and not truncate:
            raise InvalidInput(f"text {index + 1} of {len(texts)} has over {facts.max_length} tokens")
        if dimensions is not None and dimensions > len(facts.labels):
            raise InvalidInput(f"dimensions: a vector of this base has {len(facts.labels)} numbers")
        numbers = np.array(predicted(answered).scores, np.float32)[:dimensions]
        call.context.observed.vectors_cut += len(numbers) < len(facts.labels)
        if facts.normalized if normalize is None else normalize:
            numbers = unit(numbers)
        return Vector(write(index, numbers), facts.task.removeprefix(BARE), reading.tokens)

    return await ask_many(call.edge.answerer, call.context, [ref] * len(texts), texts, show, asked=_ASKED)


async def _ref(call: Call[Any], in_path: str, in_body: str) -> str:
    if in_path and in_body and in_path != in_body:
        # Clients must name a model, and may name any where the path has the base. Errors of a front end have no kind.
        try:
            bases = await call.edge.answerer.live(call.context, [BARE + in_path, BARE + in_body])
        except OneBertError as error:
            if error.code != TaskNotFound.code:
                raise
        else:
            if len({facts.base for facts in bases}) > 1:
                raise InvalidInput("the request names different bases in its path and its body")
    return BARE + (in_path or in_body)
