"""Options shared by several components' commands, with one help text each; and the parser of durations."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import printable

# Heavy imports are inside the functions: `onebert --help` imports this file.
if TYPE_CHECKING:
    from onebert_store.registry.store import StoreAddress

TEXT = "Column of the text, a.b for a field of JSON objects; else found by name."
TEXT_PAIR = "Column of the second text of a pair."
ENCODING = (
    "Encoding of text files without a byte order mark, such as cp1251; else found, and said where it is not UTF-8."
)
SHEET = "Sheet of an .xlsx workbook; else the first."
LABEL_SEPARATOR = "What is between the labels in a cell, as ; or |; else a cell's text is one label."
BASE = "The frozen encoder: a Hugging Face Hub id, a local folder or an added base; else all-MiniLM-L6-v2."


class Panel(str):
    """The box of a command's help that shows an option, by its title."""

    def option(self, help: str, *names: str, **settings: Any) -> Any:
        return typer.Option(*names, help=help, rich_help_panel=self, **settings)


def with_options(**makers: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replaces a command's parameters, each by the options that are the parameters of the function which makes it."""

    def expand(command: Callable[..., None]) -> Callable[..., None]:
        command_signature, options = signature(command), {name: signature(make) for name, make in makers.items()}

        @wraps(command)
        def run(**arguments: Any) -> None:
            for name, make in makers.items():
                arguments[name] = make(**{option: arguments.pop(option) for option in options[name].parameters})
            command(**arguments)

        expanded = list[Parameter]()
        for name, parameter in command_signature.parameters.items():
            expanded += options[name].parameters.values() if name in options else [parameter]
        # typer reads both.
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
        keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in expanded]
        run.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
        return run

    return expand


# Options of commands that ask a server
URL = "http://127.0.0.1:8000"
CONNECTION = Panel("Server")
Url = Annotated[str, CONNECTION.option("Address of the server.", "--url", envvar="ONEBERT_URL", metavar="URL")]
ApiKey = Annotated[
    str | None,
    CONNECTION.option("API key, if the server wants one.", "--api-key", envvar="ONEBERT_API_KEY", metavar="KEY"),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]

_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """Parses a number followed by s, m, h or d; raises InvalidInput for anything else."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise InvalidInput(f"'{printable(text)}' is not a time: a number and s, m, h or d, as 24h")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


# Options of commands that open a store
DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir", envvar="ONEBERT_DATA_DIR", metavar="FOLDER", help="The store's folder, as the server's setting."
    ),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="ONEBERT_REGISTRY",
        metavar="URL",
        help="The store's database, as the server's setting; by default a file in its folder.",
        show_default=False,
    ),
]
BlobsUrl = Annotated[
    str | None,
    typer.Option(
        "--blobs",
        envvar="ONEBERT_BLOBS",
        metavar="URL",
        help="Where the store's files are, as the server's setting; by default a folder in its folder.",
        show_default=False,
    ),
]
DATA_DIR = Path("onebert-data")


def store_at(data_dir: DataDir = DATA_DIR, registry: RegistryUrl = None, blobs: BlobsUrl = None) -> "StoreAddress":
    """The store that the options select."""
    from onebert_store.registry.store import StoreAddress  # noqa: PLC0415

    return StoreAddress.within(data_dir, registry, blobs)
