"""Questions: texts for one task, for many, or for every task."""

import re
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from onebert_encoder.answering.asked import PLAIN, Asked, AskedWindow
from onebert_encoder.text.tokens import Text as Input
from onebert_server.contract.declared import REF
from onebert_server.http.schemas.common import Ref, RequestBody
from onebert_server.http.schemas.texts import Text, TextPair
from onebert_server.limits import MAX_EXPLAINED, MAX_FANOUT, MAX_ITEMS, MAX_LEFT_OUT, MAX_REQUEST_TIMEOUT, MAX_TEXT
from onebert_store.file.decision import MIN_WINDOW, Activation, Reduction

# The beginning of a plain body, the type of what follows, and a character that no blank text has.
_INPUTS, _texts = b'{"inputs":', msgspec.json.Decoder(str | list[str]).decode
_has_word = re.compile(r"\w").search

RefOrAll = Annotated[Ref, Field(json_schema_extra={"pattern": rf"{REF[:-1]}$|^\*$"})]
TopK = Annotated[
    int | None,
    Field(
        ge=1,
        le=4096,
        description="how many scores to send, best first (null: all); span tasks: answers (null: one, at most 20)",
    ),
]


def input_of(item: str | TextPair) -> Input:
    """Converts a request's input to the answerer's."""
    return item if isinstance(item, str) else item.input


# Tags of the unions' branches. They appear in the paths of violations, where problems.py removes them.
TEXT, PAIR, LIST, TEXTS, OBJECT = "[text]", "[pair]", "[list]", "[texts]", "[object]"
# The others are tags of façades' unions.
TAGS = frozenset({TEXT, PAIR, LIST, TEXTS, OBJECT, "[batch]", "[question]", "[inputs]", "[parts]"})


def _tag(value: Any) -> str:
    """Chooses the branch of a union, so that errors concern the kind of value that was sent."""
    return LIST if isinstance(value, list) else TEXT if isinstance(value, str) else PAIR


def _tag_of_inputs(value: Any) -> str:
    """Like `_tag`; a list of nothing but texts has a branch of its own, which chooses none for each of them."""
    return TEXTS if isinstance(value, list) and {*map(type, value)} == {str} else _tag(value)


def text_or_list(value: Any) -> str:
    """Chooses the branch of a union without pairs."""
    return LIST if isinstance(value, list) else TEXT


_Several = Field(min_length=1, max_length=MAX_ITEMS)
OneInput = Annotated[Annotated[Text, Tag(TEXT)] | Annotated[TextPair, Tag(PAIR)], Discriminator(_tag)]
Inputs = Annotated[
    Annotated[Text, Tag(TEXT)]
    | Annotated[TextPair, Tag(PAIR)]
    | Annotated[Annotated[list[OneInput], _Several], Tag(LIST)]
    | SkipJsonSchema[Annotated[Annotated[list[Text], _Several], Tag(TEXTS)]],
    Discriminator(_tag_of_inputs),
]
Texts = Annotated[
    Annotated[Text, Tag(TEXT)] | Annotated[Annotated[list[Text], _Several], Tag(LIST)],
    Discriminator(text_or_list),
]


class WindowBody(RequestBody):
    """How texts that are too long for one sequence are read: in several that overlap, answered as one."""

    tokens: Annotated[
        int | None,
        Field(ge=MIN_WINDOW, le=65536, description="of a window, special tokens included (null: max_length)"),
    ] = None
    overlap: Annotated[int, Field(ge=0, le=32768, description="tokens that a window shares with the one before")] = 0
    reduction: Annotated[Reduction | None, Field(description="how their answers become one (null: the type's own)")] = (
        None
    )

    @model_validator(mode="after")
    def _has_stride(self) -> "WindowBody":
        if self.tokens is not None and 2 * self.overlap > self.tokens:
            raise ValueError("overlap is at most half of tokens")
        return self


class Options(RequestBody):
    """A request's own rules for its answers, in place of those of its tasks."""

    top_k: TopK = None
    activation: Annotated[
        Activation | None, Field(description="what makes scores of logits; `none` gives the logits (null: the task's)")
    ] = None
    threshold: Annotated[
        float | None,
        Field(allow_inf_nan=False, description="score over which a label is among `labels` (null: the task's)"),
    ] = None
    window: Annotated[WindowBody | None, Field(description="how long texts are read (null: as the task says)")] = None
    energy: Annotated[bool, Field(description="whether answers say their `energy`")] = False
    timeout_ms: Annotated[
        int | None,
        Field(ge=1, le=1000 * MAX_REQUEST_TIMEOUT, description="milliseconds, from arrival, in which to answer"),
    ] = None

    @property
    def asked(self) -> Asked:
        """The options as the answerer takes them."""
        if Options.model_fields.keys().isdisjoint(self.model_fields_set):
            return PLAIN
        window = None if self.window is None else AskedWindow(**vars(self.window))
        if (self.top_k, self.activation, self.threshold, window, self.energy) == (None, None, None, None, False):
            return PLAIN
        return Asked(self.top_k, self.activation, self.threshold, window, energy=self.energy)


class Together(Options):
    """Options of a request for many tasks."""

    partial: Annotated[
        bool, Field(description="whether what can be answered is, beside an `error` where something cannot, or is late")
    ] = False


def _false(partial: bool) -> bool:
    if partial:
        raise ValueError("a request for one task is answered whole; /v1/classify takes partial")
    return partial


class ClassifyRequest(Options):
    """Inputs for one task."""

    inputs: Inputs
    explain: Annotated[
        bool,
        Field(
            description="whether each answer says which words it is owed to; of at most "
            f"{MAX_EXPLAINED} inputs, each computed as often as it has words, {MAX_LEFT_OUT} times at most"
        ),
    ] = False
    partial: Annotated[
        bool,
        AfterValidator(_false),
        Field(description="false: one task answers whole", json_schema_extra={"const": False}),
    ] = False

    @staticmethod
    def plain(body: bytes) -> "PlainRequest | None":
        """Reads a body that has nothing but texts, without pydantic; None if it is another one, or breaks a rule."""
        # One value lies between, so no key comes twice.
        if not (body.startswith(_INPUTS) and body.endswith(b"}")):
            return None
        try:
            inputs = _texts(body[len(_INPUTS) : -1])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        texts = inputs if isinstance(inputs, list) else [inputs]
        taken = 0 < len(texts) <= MAX_ITEMS and max(map(len, texts)) <= MAX_TEXT and all(map(_has_word, texts))
        return PlainRequest(texts) if taken else None

    @property
    def texts(self) -> list[Input]:
        return [*map(input_of, self.inputs if isinstance(self.inputs, list) else [self.inputs])]

    @model_validator(mode="after")
    def _is_within_limits(self) -> "ClassifyRequest":
        if self.explain and isinstance(self.inputs, list) and len(self.inputs) > MAX_EXPLAINED:
            raise ValueError(f"explain takes at most {MAX_EXPLAINED} inputs")
        return self


class PlainRequest(msgspec.Struct, frozen=True):
    """A ClassifyRequest with texts alone."""

    texts: list[str]
    asked: ClassVar[Asked] = PLAIN
    explain: ClassVar[bool] = False
    timeout_ms: ClassVar[None] = None


class Item(TextPair):
    """One input for one task; without a task, for the one that is the key's default."""

    task: Ref | None = None


class ClassifyItemsRequest(Together):
    """Inputs for many tasks."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)]


class FanoutRequest(TextPair, Together):
    """One input for many tasks; `["*"]` means the live version of every task that takes it, and has what is asked."""

    tasks: Annotated[list[RefOrAll], Field(min_length=1, max_length=MAX_FANOUT)]
