"""Texts that a client sends beside questions, within their bounds."""

from typing import Annotated

from pydantic import AfterValidator, Field

from onebert_encoder.text.tokens import Text as Input
from onebert_encoder.text.tokens import text_of
from onebert_server.limits import MAX_TEXT
from onebert_store.file.fields import Strict
from onebert_store.tables.text.unicode import is_blank


def _not_blank(text: str) -> str:
    if is_blank(text):
        raise ValueError("must not be blank")
    return text


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_not_blank)]


class TextPair(Strict):
    """One input: a text, or a pair of texts for tasks on pairs; for span tasks a question and its context."""

    text: Text
    text_pair: Text | None = None

    @property
    def input(self) -> Input:
        return text_of(self.text, self.text_pair)
