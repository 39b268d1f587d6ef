"""Parses JSON strictly: no duplicate keys, finite numbers, bounded depth."""

import json
import math
from itertools import pairwise
from typing import Any, NoReturn

MAX_DEPTH = 32
MAX_INTEGER = 2**63 - 1


def parse(data: bytes) -> Any:
    """Decodes one JSON value; raises ValueError with one sentence, in which client text is truncated and printable."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    if text.startswith("\ufeff"):
        raise ValueError("it starts with a byte order mark")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.pos}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def encode(value: Any) -> str:
    """Writes canonical JSON: keys sorted by code point, no spaces, shortest numbers that read back equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def refuse_foreign(value: Any, depth: int = 0) -> None:
    """Raises ValueError if `parse` could not return the value, or it is nested deeper than `MAX_DEPTH`."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError("a key is not a string")
            _refuse_scalar(key)
            refuse_foreign(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            refuse_foreign(item, depth + 1)
    else:
        _refuse_scalar(value)


def printable(text: str, limit: int = 80) -> str:
    """Makes client text safe for a message or a terminal: truncated, with `?` for unprintable characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in cut)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    decoded = dict(pairs)
    if len(decoded) != len(pairs):
        keys = sorted(key for key, _ in pairs)
        twice = next(key for key, following in pairwise(keys) if key == following)
        raise ValueError(f"the key '{printable(twice)}' appears twice")
    return decoded


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _bounded(literal: str) -> int:
    # Checks the length first: converting thousands of digits takes quadratic time.
    if len(literal) > 20 or abs(number := int(literal)) > MAX_INTEGER:
        raise ValueError("an integer does not fit 64 bits")
    return number


def _refuse_scalar(value: Any) -> None:
    match value:
        case None | bool():
            return
        case str():
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise ValueError("a text has half a surrogate pair")
        case int():
            if abs(value) > MAX_INTEGER:
                raise ValueError("an integer does not fit 64 bits")
        case float():
            if not math.isfinite(value):
                raise ValueError("a number is not finite")
        case _:
            raise ValueError(f"{type(value).__name__} is not a JSON type")


# Made once: making a decoder takes longer than parsing a short text.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_bounded
)
