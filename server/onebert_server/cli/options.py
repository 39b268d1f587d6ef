"""Options that several commands share, and the client that they ask for."""

from typing import TYPE_CHECKING, Annotated

import typer

# Heavy imports are inside the commands: `onebert --help` imports these files.
if TYPE_CHECKING:
    from onebert_server.client import Client

CONNECTION = "Server"
OUTPUT = "Output"
URL = "http://127.0.0.1:8000"

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="ONEBERT_URL", metavar="URL", help="Address of the server.", rich_help_panel=CONNECTION
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="ONEBERT_API_KEY",
        metavar="KEY",
        help="API key, if the server wants one.",
        rich_help_panel=CONNECTION,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT)]


def connect(url: str, api_key: str | None) -> "Client":
    """A client of the server that the options name."""
    from onebert_server.client import Client  # noqa: PLC0415

    return Client(url, api_key)
