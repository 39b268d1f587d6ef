"""The fields of a request's head, read once for everything that asks about them."""

from collections.abc import Sequence

Field = tuple[bytes, bytes]

HEAD = "head"
"""Request state key: the request's Head."""

ARRIVED = "arrived"
"""Request state key, set once the last byte of the request is here: `receive` does not wait for the body."""


class Head:
    """Header fields by name, in lower case.

    Attributes:
        raw: the fields in their order, as an ASGI scope has them.
        fields: the first value of each field.
        repeated: the further values of fields that come several times.
    """

    __slots__ = ("fields", "raw", "repeated")

    def __init__(self, raw: Sequence[Field] = ()) -> None:
        self.raw = raw
        # The first value of a field overwrites its further ones.
        self.fields = dict(reversed(raw))
        self.repeated: dict[bytes, list[bytes]] = {}
        if len(self.fields) < len(raw):
            seen = set[bytes]()
            for name, value in raw:
                if name in seen:
                    self.repeated.setdefault(name, []).append(value)
                seen.add(name)

    def value(self, name: str) -> bytes | None:
        """The first value of a field as it came; None without the field."""
        return self.fields.get(name.encode())

    def first(self, name: bytes) -> str:
        """The first value of a field; empty without the field."""
        return str(self.fields.get(name, b""), "latin-1")

    def all(self, name: bytes) -> Sequence[str]:
        """All values of a field, in their order."""
        if name not in self.fields:
            return ()
        return [str(value, "latin-1") for value in (self.fields[name], *self.repeated.get(name, ()))]
