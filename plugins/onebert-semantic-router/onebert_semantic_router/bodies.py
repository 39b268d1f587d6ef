"""Request bodies of the router: texts for one model, and bundles; unknown fields are rejected."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from onebert_server.http.schemas.common import Ref, RequestBody
from onebert_server.http.schemas.questions import LIST, TEXT, OneInput, text_or_list
from onebert_server.http.schemas.texts import Text
from onebert_server.limits import MAX_ITEMS, MAX_TEXT
from onebert_store.file.decision import MIN_WINDOW

Milliseconds = Annotated[
    float | None,
    Field(gt=0, allow_inf_nan=False, description="what has not begun after so long is not answered"),
]


class TextWindow(RequestBody):
    """How texts are read that are too long for one sequence."""

    tokens: Annotated[int, Field(ge=MIN_WINDOW, le=65536, description="of a window, special tokens included")]
    overlap: Annotated[
        int | None, Field(ge=0, le=32768, description="tokens that a window shares with the one before")
    ] = None

    @model_validator(mode="after")
    def _goes_on(self) -> "TextWindow":
        if 2 * (self.overlap or 0) > self.tokens:
            raise ValueError("overlap is at most half of tokens")
        return self


class Options(RequestBody):
    """Options of an answer; null takes the task's own."""

    deadline_ms: Milliseconds = None
    profile: Literal["exact"] | None = None
    return_meta: bool | None = None
    overflow: Annotated[
        Literal["reject", "truncate", "window"] | None, Field(description="of what is longer than the task takes")
    ] = None
    max_tokens: Annotated[int | None, Field(ge=1, description="over which an input is not answered")] = None
    window: TextWindow | None = None
    threshold: Annotated[float | None, Field(ge=0, le=1, description="of token tasks: over which a span counts")] = None
    return_tokens: Annotated[Literal[False] | None, Field(description="scores of single tokens are not given")] = None

    @model_validator(mode="after")
    def _fits_together(self) -> "Options":
        if self.window is not None and self.overflow != "window":
            raise ValueError("window is for the overflow window")
        return self


class Classify(RequestBody):
    """A text, or a list of texts and of pairs, for one task."""

    # Keeps the schema's name in the OpenAPI document, which has had it since this module was the server's own.
    __module__ = "onebert_server.facades.clients.semantic_router.bodies"

    model: Ref | None = None
    input: Annotated[
        Annotated[Text, Tag(TEXT)]
        | Annotated[Annotated[list[OneInput], Field(min_length=1, max_length=MAX_ITEMS)], Tag(LIST)],
        Discriminator(text_or_list),
    ]
    head: str | None = None
    options: Options | None = None


class BundleTask(RequestBody):
    """One request of a bundle, by what it would be sent to; only `classify` is served."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    # Validated later, since each task in a bundle gets its own status.
    classify: dict[str, Any] | None = None
    decisions: dict[str, Any] | None = None
    embeddings: dict[str, Any] | None = None
    rerank: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_surface(self) -> "BundleTask":
        if len(self.model_fields_set) != 2:
            raise ValueError("a task has an id and one of classify, decisions, embeddings and rerank")
        return self


class BundleOptions(RequestBody):
    """Options of a whole bundle."""

    deadline_ms: Milliseconds = None


class Bundle(RequestBody):
    """Requests for any models, each answered as if it came alone."""

    tasks: Annotated[list[BundleTask], Field(min_length=1)]
    options: BundleOptions | None = None

    @model_validator(mode="after")
    def _distinct(self) -> "Bundle":
        if len({task.id for task in self.tasks}) < len(self.tasks):
            raise ValueError("the ids of tasks are distinct")
        return self


class Grounds(RequestBody):
    """The text and labels that an answer is compared with."""

    context: Text
    question: str | None = None

    @model_validator(mode="after")
    def _is_one_text(self) -> "Grounds":
        if len(self.text) > MAX_TEXT:
            raise ValueError(f"question and context must have at most {MAX_TEXT} characters together")
        return self

    @property
    def text(self) -> str:
        return f"{self.question}\n\n{self.context}" if self.question else self.context


class Flat(RequestBody):
    """One text, or an answer with what it is held against."""

    inputs: Text
    parameters: Grounds | None = None
