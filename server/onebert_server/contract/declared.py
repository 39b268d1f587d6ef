"""How an object on the wire is declared: a msgspec struct, whose `Rule`s pydantic reads too, where it is installed."""

from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from msgspec import NODEFAULT, Struct, to_builtins
from msgspec.structs import fields

NAME = "^[a-z0-9][a-z0-9._-]{0,62}$"
# All digits would be a version number.
ALIAS = f"^(?![0-9]+$){NAME[1:]}"
GLOB = "^[a-z0-9*][a-z0-9._*-]{0,62}$"
REF = f"{NAME[:-1]}(@{NAME[1:-1]})?$"
"""The patterns are documentation for the OpenAPI document; the store validates names."""


class Rule:
    """Describes a field and bounds it, by the arguments of pydantic's `Field`; `pattern` is documentation alone.

    A server keeps the bounds. A client ignores them, because a newer server may have wider ones.
    """

    def __init__(self, description: str = "", one_of: tuple[str, ...] = (), pattern: str = "", **bounds: float) -> None:
        self.one_of, self.bounds = one_of, dict[str, Any](bounds)
        named = {"description": description, "pattern": pattern}
        self.documented = {name: text for name, text in named.items() if text}

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> Any:
        from pydantic import Field  # noqa: PLC0415 - a client has no pydantic

        if self.one_of:
            return handler.generate_schema(Literal[self.one_of])
        return handler.generate_schema(Annotated[kind, Field(**self.bounds)]) if self.bounds else handler(kind)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), **self.documented}


class Declared(Struct, frozen=True):
    """Base of the structs. FastAPI documents and checks them as pydantic models with the same fields."""

    # The name in the OpenAPI document, if it is not the class's own; the model's configuration; and the fields that a
    # server always sends although a client takes null where they are missing, as in another release's reply.
    _document: ClassVar[str]
    _config: ClassVar[dict[str, Any]] = {}
    _always: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, kind: Any, handler: Any) -> Any:
        return handler(_model(cls))


STRICT = {"strict": True, "extra": "forbid"}
"""The configuration of an object that clients send too: no coercion and no unknown fields."""


def as_dict(value: Struct) -> dict[str, Any]:
    """Converts a struct to JSON values; fields of an answer that are None are left out."""
    converted: dict[str, Any] = to_builtins(value)
    return converted


@cache
def _model(kind: type[Declared]) -> Any:
    from pydantic import create_model  # noqa: PLC0415

    hints = get_type_hints(kind, include_extras=True)
    columns: dict[str, Any] = {}
    for column in fields(kind):
        default = ... if column.required or column.name in kind._always else column.default
        if default is NODEFAULT:
            default = column.default_factory()
        if isinstance(default, Declared):
            default = _model(type(default))()
        columns[column.name] = hints[column.name], default
    config: Any = {"from_attributes": True, **kind._config}
    return create_model(vars(kind).get("_document", kind.__name__), __doc__=kind.__doc__, __config__=config, **columns)
