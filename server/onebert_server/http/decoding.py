"""Bodies of the data plane: msgspec reads them, and each broken rule is named by its field."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

from onebert_server.contract.declared import REF
from onebert_server.http.strict import MAX_VALUES, counted
from onebert_server.limits import MAX_REF
from onebert_store.errors import InvalidInput
from onebert_store.tables.text.unicode import HALF, is_blank, is_unicode

Ref = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_REF,
        description="`name`, `name@3` or `name@alias`",
        extra_json_schema={"pattern": REF},
    ),
]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
No = Annotated[bool, Meta(extra_json_schema={"const": False})]
"""For a switch of other servers, which `only` holds at false."""

Place = tuple[str | int, ...]
"""A place in a body: names of fields, and numbers of items."""

# In JSON without spaces: a string that may be blank, since it has no letter, digit or punctuation of ASCII.
_MAY_BE_BLANK = re.compile(r'"(?:[^\w!-~]+|\\(?:[bfnrt]|u[0-9a-f]{4}))++"').search
# msgspec's messages, and its names of types.
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_BOUND = re.compile(r"Expected `(\w+)` (of length )?(>=|<=|<|>) (\S+)")
_KINDS = re.compile(r"Expected `([a-z |]+)`")
_TYPES = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}
_TYPES |= {"array": "a list", "object": "an object"}
_BLANK = "must not be blank"
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

_encode = msgspec.json.Encoder().encode


class QuestionBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A body, or an object in one: no coercion and no unknown fields; null is the default of an optional field.

    `__post_init__` may raise ValueError with a rule in words, behind a field's name and a colon if it is of one field.
    """


BROKEN = "the request breaks a rule; see errors"


class BrokenRules(InvalidInput):
    """A body breaks rules: the place and the rule of each."""

    def __init__(self, *rules: tuple[Place, str]) -> None:
        super().__init__(BROKEN)
        self.rules = rules


T = TypeVar("T", bound=QuestionBody)


class Decoder(Generic[T]):
    """Reads bodies of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self.kind, self._decode = kind, msgspec.json.Decoder(kind).decode

    def at_once(self, body: bytes) -> T | None:
        """Reads a body that certainly keeps all rules; returns None for another one. Raises TooLarge."""
        if len(body) > MAX_VALUES:
            counted(body, most_items=self.most_items)
        try:
            value = self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        written = _encode(value)
        # msgspec takes the last of two equal keys. Then the body has more colons, unless it writes others as escapes.
        distinct = written.count(b":") == body.count(b":") and rb"\u003" not in body
        return value if distinct and not _MAY_BE_BLANK(written.decode()) else None

    def most_items(self, field: str) -> int | None:
        """The maximum length of the list that a field takes."""
        return next((option["maxItems"] for option in _documented(self.kind, field) if "maxItems" in option), None)


def converted(kind: type[T], value: Any, *at: str | int) -> T:
    """Reads JSON values as a body; `at` is their place in one. Raises BrokenRules."""
    try:
        body = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        place, rule = _rule(kind, str(error))
        raise BrokenRules(((*at, *place), rule)) from None
    except UnicodeEncodeError:
        # Half of a surrogate pair, in a field that is no text.
        body = None
    for place, rule in _faults(value):
        field = next((name for name in reversed(place) if isinstance(name, str)), None)
        taken = str([*_documented(kind, field)])
        # Values of any type change no answer, or are read later; a text that may be empty may be blank.
        if body is None or ("minLength" in taken if rule is _BLANK else "type" in taken):
            raise BrokenRules(((*at, *place), rule))
    return cast(T, body)


def only(value: bool, **switches: bool | None) -> None:
    """Raises ValueError for a switch that is given, and is not at the one value that is taken."""
    for name, given in switches.items():
        if given is not None and given is not value:
            raise ValueError(f"{name}: must be {str(value).lower()}")


def _faults(value: Any, at: Place = ()) -> Iterator[tuple[Place, str]]:
    """The texts of JSON values that no tokenizer reads."""
    if isinstance(value, str):
        if not is_unicode(value):
            yield at, f"must be Unicode, without {HALF}"
        elif is_blank(value):
            yield at, _BLANK
    elif isinstance(value, list | dict):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _faults(item, (*at, name))


def _rule(kind: type[QuestionBody], reason: str) -> tuple[Place, str]:
    """The place and the rule of a message of msgspec's, in our words; no value of the body is repeated."""
    message, _, path = reason.rpartition(" - at `$") if " - at `$" in reason else (reason, "", "")
    place: Place = tuple(int(step) if step.isdigit() else step for step in re.findall(r"\w+", path))
    if match := _FIELD.fullmatch(message):
        place, rule = (*place, match[2]), "is required" if match[1] == "missing required" else "unknown field"
    elif match := _BOUND.fullmatch(message):
        kind_of, length, sign, number = match.groups()
        has = f"must have {_BOUNDS[sign]} {number} {'characters' if kind_of == 'str' else 'items'}"
        rule = f"must be {_BOUNDS[sign]} {number}" if not length else has if number != "1" else "must not be empty"
    elif match := _KINDS.match(message):
        taken = [_TYPES[name] for name in match[1].split(" | ") if name in _TYPES]
        rule = f"must be {_either(taken or ['null'])}"
    elif message.startswith("Invalid enum value"):
        choices = [str(choice) for option in _documented(kind, place[-1]) for choice in option.get("enum", ())]
        rule = f"must be {_either(choices)}"
    else:
        # A rule of our own.
        field, colon, rule = message.rpartition(": ")
        place = (*place, field) if colon else place
    return place, rule


def _either(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _documented(kind: type[QuestionBody], field: Any) -> Iterator[dict[str, Any]]:
    """The types that the fields of this name take, by their JSON schemas."""
    _, schemas = msgspec.json.schema_components([kind])
    for schema in schemas.values():
        if field in schema.get("properties", {}):
            yield from schema["properties"][field].get("anyOf", [schema["properties"][field]])
