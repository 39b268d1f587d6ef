"""Options that several commands share, and the client that they ask for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onebert_server.cli import completion
from onebert_server.cli.completion import references, task_names
from onebert_store.command.options import BASE, ENCODING, TEXT, TEXT_PAIR

# Heavy imports are inside the commands: `onebert --help` imports these files.
if TYPE_CHECKING:
    from onebert_server.client import Client

CONNECTION = "Server"
COMPUTING = "Base and device"
INPUT = "Input"
OUTPUT = "Output"
URL = completion.URL

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

TaskName = Annotated[str, typer.Argument(help="Name of the task.", metavar="TASK", autocompletion=task_names)]
REFERENCE = "name (its live version), name@3 or name@alias."
Ref = Annotated[str, typer.Argument(help=REFERENCE, metavar="TASK", autocompletion=references)]

TextColumn = Annotated[str | None, typer.Option("--text", metavar="COLUMN", help=TEXT, rich_help_panel=INPUT)]
TextPairColumn = Annotated[
    str | None, typer.Option("--text-pair", metavar="COLUMN", help=TEXT_PAIR, rich_help_panel=INPUT)
]
Encoding = Annotated[str | None, typer.Option("--encoding", metavar="NAME", help=ENCODING, rich_help_panel=INPUT)]

# Where these are not given, the environment decides, or the setting's default: they are None.
Base = Annotated[str | None, typer.Option("--base", help=BASE, rich_help_panel=COMPUTING)]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="What to compute in: auto (default), float32, bfloat16 or int8.", rich_help_panel=COMPUTING
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where to compute: auto (default: a GPU where there is one), cpu, cuda or cuda:N.",
        rich_help_panel=COMPUTING,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Where tasks and their versions are kept; default onebert-data.",
        rich_help_panel="Data",
    ),
]


def connect(url: str, api_key: str | None) -> "Client":
    """A client of the server that the options name."""
    from onebert_server.client import Client  # noqa: PLC0415

    return Client(url, api_key)
