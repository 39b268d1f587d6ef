"""The body with examples."""

from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator

from onebert_server.http.schemas.common import LIST, OBJECT, RequestBody
from onebert_server.http.schemas.texts import Text, TextPair
from onebert_store.file.fields import Label

# Examples of a request, and labels of one of them.
MAX_EXAMPLES, MAX_LABELS = 2000, 64


class Example(TextPair):
    """A text, or a pair of texts, with its label, or with all its labels."""

    label: Label | None = None
    labels: Annotated[list[Label] | None, Field(max_length=MAX_LABELS, description="of a multi_label task")] = None


_EXAMPLES: list[JsonValue] = [
    {"text": "where is my order?", "label": "question"},
    {"text": "it is broken", "label": "complaint"},
]


_Several = Field(min_length=2, max_length=MAX_EXAMPLES)
_Labels = Annotated[
    Annotated[Annotated[list[Label], _Several], Tag(LIST)]
    | Annotated[Annotated[dict[Label, Text], _Several], Tag(OBJECT)],
    Discriminator(lambda value: OBJECT if isinstance(value, dict) else LIST),
]


class ExamplesRequest(RequestBody):
    """Labeled examples of two labels or more, eight of each to begin with; or the labels alone; or both.

    The examples have one `label` each, or any number of `labels`. Beside them each label's description, or else its
    name, is one more example.
    """

    # Its fields exclude each other.
    model_config = ConfigDict(json_schema_extra={"examples": [{"examples": _EXAMPLES}]})

    examples: list[Example] | None = Field(None, min_length=2, max_length=MAX_EXAMPLES)
    labels: _Labels | None = Field(
        None, description="names, or names with descriptions: a text gets the label whose words are nearest"
    )

    @model_validator(mode="after")
    def _of_one_kind(self) -> "ExamplesRequest":
        if self.examples is None and self.labels is None:
            raise ValueError("give examples, labels, or both")
        several = [row.labels is not None for row in self.examples or ()]
        for at, row in enumerate(self.examples or ()):
            if (row.label is None) == (row.labels is None):
                raise ValueError(f"examples.{at} must have label, or labels")
            if several[at] != several[0]:
                raise ValueError(f"examples.{at} has {'labels' if several[at] else 'label'}, and others do not")
        alone = [row.text_pair is None for row in self.examples or ()]
        if any(alone) and not all(alone):
            raise ValueError(f"examples.{alone.index(True)} has no text_pair, and others have")
        if self.labels and (any(several) or not all(alone)):
            raise ValueError("labels stand beside examples of one text with one label each")
        return self

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The examples, and behind them a row without a text for each label."""
        labels = self.labels if isinstance(self.labels, dict) else dict.fromkeys(self.labels or (), "")
        rows = [row.model_dump(exclude_none=True) for row in self.examples or ()]
        return rows + [{"label": label, "description": words} for label, words in labels.items()]
