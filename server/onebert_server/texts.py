"""A text that a client sends, within its bounds."""

from typing import Annotated

from pydantic import AfterValidator, Field

from onebert_server.limits import MAX_TEXT
from onebert_store.tables.text.unicode import is_blank


def _not_blank(text: str) -> str:
    if is_blank(text):
        raise ValueError("must not be blank")
    return text


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_not_blank)]
