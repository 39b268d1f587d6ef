"""Request bodies of the router: texts for one model, and bundles; unknown fields are rejected."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from onebert_server.http.decoding import No, Positive, QuestionBody, Ref, Share, only
from onebert_server.http.schemas.questions import Overlap, Text, TextPair, Tokens
from onebert_server.limits import MAX_ITEMS, MAX_TEXT

Milliseconds = Annotated[float, Meta(gt=0, description="what has not begun after so long is not answered")] | None


class TextWindow(QuestionBody):
    """How texts are read that are too long for one sequence."""

    tokens: Annotated[Tokens, Meta(description="of a window, special tokens included")]
    overlap: Annotated[Overlap | None, Meta(description="tokens that a window shares with the one before")] = None

    def __post_init__(self) -> None:
        if 2 * (self.overlap or 0) > self.tokens:
            raise ValueError("overlap is at most half of tokens")


class Options(QuestionBody):
    """Options of an answer; null takes the task's own."""

    deadline_ms: Milliseconds = None
    profile: Literal["exact"] | None = None
    return_meta: bool | None = None
    overflow: Annotated[
        Literal["reject", "truncate", "window"] | None, Meta(description="of what is longer than the task takes")
    ] = None
    max_tokens: Annotated[Positive | None, Meta(description="over which an input is not answered")] = None
    window: TextWindow | None = None
    threshold: Annotated[Share | None, Meta(description="of token tasks: over which a span counts")] = None
    return_tokens: Annotated[No, Meta(description="scores of single tokens are not given")] | None = None

    def __post_init__(self) -> None:
        only(False, return_tokens=self.return_tokens)
        if self.window is not None and self.overflow != "window":
            raise ValueError("window is for the overflow window")


class Classify(QuestionBody):
    """A text, or a list of texts and of pairs, for one task."""

    input: Text | Annotated[list[Text | TextPair], Meta(min_length=1, max_length=MAX_ITEMS)]
    model: Ref | None = None
    head: str | None = None
    options: Options | None = None


class BundleTask(QuestionBody):
    """One request of a bundle, by what it would be sent to; only `classify` is served."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    # Validated later, since each task in a bundle gets its own status.
    classify: dict[str, Any] | None = None
    decisions: dict[str, Any] | None = None
    embeddings: dict[str, Any] | None = None
    rerank: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 2:
            raise ValueError("a task has an id and one of classify, decisions, embeddings and rerank")


class BundleOptions(QuestionBody):
    """Options of a whole bundle."""

    deadline_ms: Milliseconds = None


class Bundle(QuestionBody):
    """Requests for any models, each answered as if it came alone."""

    tasks: Annotated[list[BundleTask], Meta(min_length=1)]
    options: BundleOptions | None = None

    def __post_init__(self) -> None:
        if len({task.id for task in self.tasks}) < len(self.tasks):
            raise ValueError("the ids of tasks are distinct")


class Grounds(QuestionBody):
    """The text and labels that an answer is compared with."""

    context: Text
    question: str | None = None

    def __post_init__(self) -> None:
        if len(self.text) > MAX_TEXT:
            raise ValueError(f"question and context must have at most {MAX_TEXT} characters together")

    @property
    def text(self) -> str:
        return f"{self.question}\n\n{self.context}" if self.question else self.context


class Flat(QuestionBody):
    """One text, or an answer with what it is held against."""

    inputs: Text
    parameters: Grounds | None = None
