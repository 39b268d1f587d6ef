"""Texts that a client sends, within their bounds."""

from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from onebert_encoder.text.tokens import Text as Input
from onebert_encoder.text.tokens import text_of
from onebert_server.limits import MAX_TEXT
from onebert_store.file.fields import Strict


class _NotBlank:
    """Requires a character that may be a token's, as `is_blank` does, without a call of Python for each text."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        some = core_schema.str_schema(pattern=r"[^\p{Z}\p{C}\p{M}]")
        refusing = core_schema.custom_error_schema(
            some, "value_error", custom_error_context={"error": ValueError("must not be blank")}
        )
        # The document shows only the first schema of a chain.
        return core_schema.chain_schema([handler(source), refusing])


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), _NotBlank]


class TextPair(Strict):
    """One input: a text, or a pair of texts for tasks on pairs; for span tasks a question and its context."""

    text: Text
    text_pair: Text | None = None

    @property
    def input(self) -> Input:
        return text_of(self.text, self.text_pair)
