"""Questions: texts for one task, for many, or for every task."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from onebert_encoder.answering.asked import PLAIN, Asked, AskedWindow
from onebert_encoder.text.tokens import Text as Input
from onebert_encoder.text.tokens import text_of
from onebert_server.contract.declared import REF
from onebert_server.http.decoding import No, QuestionBody, Ref
from onebert_server.limits import (
    MAX_EXPLAINED,
    MAX_FANOUT,
    MAX_ITEMS,
    MAX_LEFT_OUT,
    MAX_REQUEST_TIMEOUT,
    MAX_TEXT,
)
from onebert_store.file.decision import MIN_WINDOW, Activation, Reduction

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
AnyText = Annotated[str, Meta(max_length=MAX_TEXT)]
"""A text that may be blank."""
TopCount = Annotated[int, Meta(ge=1, le=4096)]
Tokens = Annotated[int, Meta(ge=MIN_WINDOW, le=65536)]
Overlap = Annotated[int, Meta(ge=0, le=32768)]
Milliseconds = Annotated[int, Meta(ge=1, le=1000 * MAX_REQUEST_TIMEOUT)]

TopK = Annotated[
    TopCount | None,
    Meta(description="how many scores to send, best first (null: all); span tasks: answers (null: one, at most 20)"),
]


class TextPair(QuestionBody):
    """One input: a text, or a pair of texts for tasks on pairs; for span tasks a question and its context."""

    text: Text
    text_pair: Text | None = None


def inputs_of(sent: str | TextPair | Sequence[str | TextPair]) -> list[Input]:
    """The inputs of a request as the answerer takes them."""
    items = [sent] if isinstance(sent, str | TextPair) else sent
    return [item if isinstance(item, str) else text_of(item.text, item.text_pair) for item in items]


Inputs = Text | TextPair | Annotated[list[Text | TextPair], Meta(min_length=1, max_length=MAX_ITEMS)]
Texts = Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_ITEMS)]


class WindowBody(QuestionBody):
    """How texts are read that are too long for one sequence: in several that overlap, answered as one."""

    tokens: Annotated[Tokens | None, Meta(description="of a window, special tokens included (null: max_length)")] = None
    overlap: Annotated[Overlap | None, Meta(description="tokens that a window shares with the one before")] = None
    reduction: Annotated[Reduction | None, Meta(description="how answers become one (null: the type's own)")] = None

    def __post_init__(self) -> None:
        if self.tokens is not None and 2 * (self.overlap or 0) > self.tokens:
            raise ValueError("overlap is at most half of tokens")


class Options(QuestionBody):
    """A request's own rules for its answers, in place of those of its tasks."""

    top_k: TopK = None
    activation: Annotated[
        Activation | None, Meta(description="what makes scores of logits; `none` gives the logits (null: the task's)")
    ] = None
    threshold: Annotated[
        float | None, Meta(description="over which score a label is in `labels` (null: the task's)")
    ] = None
    window: Annotated[WindowBody | None, Meta(description="how long texts are read (null: as the task says)")] = None
    energy: Annotated[bool | None, Meta(description="whether answers say their `energy`")] = None
    timeout_ms: Annotated[Milliseconds | None, Meta(description="milliseconds, from arrival, in which to answer")] = (
        None
    )

    @property
    def asked(self) -> Asked:
        """The options as the answerer takes them."""
        window, energy = self.window, bool(self.energy)
        if (self.top_k, self.activation, self.threshold, window, energy) == (None, None, None, None, False):
            return PLAIN
        read = None if window is None else AskedWindow(window.tokens, window.overlap or 0, window.reduction)
        return Asked(self.top_k, self.activation, self.threshold, read, energy=energy)


class Together(Options):
    """Options of a request for many tasks."""

    partial: Annotated[
        bool | None, Meta(description="whether an answer that cannot be made is an `error` beside the others")
    ] = None


class ClassifyRequest(Options, kw_only=True):
    """Inputs for one task."""

    inputs: Inputs
    explain: Annotated[
        bool | None,
        Meta(
            description="whether each answer says which words it is owed to; of at most "
            f"{MAX_EXPLAINED} inputs, each computed as often as it has words, {MAX_LEFT_OUT} times at most"
        ),
    ] = None
    partial: Annotated[No | None, Meta(description="one task answers whole")] = None

    def __post_init__(self) -> None:
        if self.partial:
            raise ValueError("partial: a request for one task is answered whole; /v1/classify takes partial")
        if self.explain and isinstance(self.inputs, list) and len(self.inputs) > MAX_EXPLAINED:
            raise ValueError(f"explain takes at most {MAX_EXPLAINED} inputs")


class Item(TextPair):
    """One input for one task; without a task, for the one that is the key's default."""

    task: Ref | None = None


class ClassifyItemsRequest(Together, kw_only=True):
    """Inputs for many tasks."""

    items: Annotated[list[Item], Meta(min_length=1, max_length=MAX_ITEMS)]


RefOrAll = Annotated[Ref, Meta(extra_json_schema={"pattern": rf"{REF[:-1]}$|^\*$"})]


class FanoutRequest(Together, kw_only=True):
    """One input for many tasks; `["*"]` means the live version of every task that takes it, and has what is asked."""

    text: Text
    text_pair: Text | None = None
    tasks: Annotated[list[RefOrAll], Meta(min_length=1, max_length=MAX_FANOUT)]
