"""One value of a TOML file with the path of its key, which each error begins with."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion

_BARE = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TYPES = {
    dict: "a table",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


class Key:
    """A value as tomllib reads it; its checks raise InvalidInput in one line."""

    def __init__(self, path: str, value: Any) -> None:
        self.path, self.value = path, value

    def wrong(self, detail: str) -> InvalidInput:
        """Makes the error of this key."""
        return InvalidInput(f"{self.path}: {detail}")

    def refused(self, error: OneBertError) -> InvalidInput:
        """Makes the error of this key from one that does not know it."""
        return self.wrong(error.detail)

    def table(self, known: Collection[str] | None = None) -> dict[str, "Key"]:
        """The keys of a table; only these if `known` names them."""
        keys = {name: Key(dotted(self.path, name), value) for name, value in self._as(dict).items()}
        for name, key in keys.items():
            if known is not None and name not in known:
                raise key.wrong("there is no such key" + (suggestion(name, known) or f"; known: {', '.join(known)}"))
        return keys

    def text(self) -> str:
        return str(self._as(str))

    def whole(self, low: int, high: int) -> int:
        if (number := self._as(int)) not in range(low, high + 1):
            raise self.wrong(f"it is {low} to {high:,}, not {printable(str(number), 20)}")
        return int(number)

    def number(self) -> float:
        return float(self.value if type(self.value) is int and abs(self.value) < 2**53 else self._as(float))

    def items(self) -> Iterator[tuple[str, "Key"]]:
        """The keys of a table of any names."""
        yield from self.table().items()

    def _as(self, kind: type) -> Any:
        if type(self.value) is not kind:
            given = _TYPES.get(type(self.value), "a time")
            raise self.wrong(f"it must be {_TYPES[kind]}, not {given}")
        return self.value


def dotted(path: str, name: str) -> str:
    """The path of a key in a table."""
    shown = name if _BARE.fullmatch(name) else f'"{printable(name, 80)}"'
    return f"{path}.{shown}" if path else shown
