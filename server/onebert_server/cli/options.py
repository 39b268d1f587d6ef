"""Options that several commands share, and the client that they ask for."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebert_server.cli import completion
from onebert_server.cli.completion import references, task_names
from onebert_store.command.options import BASE, ENCODING, SHEET, TEXT, TEXT_PAIR
from onebert_store.errors import OneBertError, TaskNotFound
from onebert_store.file.decision import Activation
from onebert_store.file.strict_json import shown
from onebert_store.meant import meant

# Heavy imports are inside the commands: `onebert --help` imports these files.
if TYPE_CHECKING:
    from onebert_server.client import Client

CONNECTION = "Server"
COMPUTING = "Base and device"
INPUT = "Input"
OUTPUT = "Output"
ANSWER = "Answer"
URL = completion.URL

_WINDOW = re.compile(r"(?P<tokens>\d{1,5})(,(?P<overlap>\d{1,5})(,(?P<reduction>max|mean|union))?)?")

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
Sheet = Annotated[str | None, typer.Option("--sheet", metavar="NAME", help=SHEET, rich_help_panel=INPUT)]
Encoding = Annotated[str | None, typer.Option("--encoding", metavar="NAME", help=ENCODING, rich_help_panel=INPUT)]

# What a request may say of its answers in place of the task (docs/api.md).
TopK = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="K",
        help="How many scores to give, best first; of a span task, how many answers, at most 20.",
        rich_help_panel=ANSWER,
    ),
]
ScoresBy = Annotated[
    Activation | None,
    typer.Option("--activation", help="What makes scores of logits; else as the task says.", rich_help_panel=ANSWER),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        metavar="SCORE",
        help="Labels over it are the answer's labels; else by the task's thresholds.",
        rich_help_panel=ANSWER,
    ),
]
Windows = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="N[,OVERLAP[,HOW]]",
        help="Read long texts whole, in windows of N tokens that share OVERLAP; HOW makes one answer of theirs: max, "
        "mean or union. Else as the task says.",
        rich_help_panel=ANSWER,
    ),
]
Energy = Annotated[
    bool,
    typer.Option(
        "--energy",
        help="Also give the energy of each answer, which is high where a text is like none that the task knows.",
        rich_help_panel=ANSWER,
    ),
]

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


def asked_of_answers(
    top_k: int | None,
    activation: "Activation | None",
    threshold: float | None,
    window: str | None,
    energy: bool = False,
) -> dict[str, Any]:
    """The options above as the client takes them; what is not given is left out.

    Raises:
        BadParameter: the window is none.
    """
    said = {"top_k": top_k, "activation": activation, "threshold": threshold, "window": _window(window)}
    said["energy"] = energy or None
    return {name: value for name, value in said.items() if value is not None}


def _window(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    found = _WINDOW.fullmatch(text)
    if not found:
        raise typer.BadParameter(f"--window {shown(text, 40)}: write 256, or 256,64, or 256,64,max")
    numbers = {name: int(found[name]) for name in ("tokens", "overlap") if found[name]}
    return numbers | ({"reduction": found["reduction"]} if found["reduction"] else {})


@contextmanager
def connect(url: str, api_key: str | None) -> "Iterator[Client]":
    """A client of the server that the options name; where a task is not found, one of a name like it is suggested."""
    from onebert_server.client import Client  # noqa: PLC0415

    with Client(url, api_key) as client:
        try:
            yield client
        except TaskNotFound as error:
            with suppress(OneBertError):
                error.detail += meant(error.detail.rpartition(" ")[2], [task.name for task in client.tasks()])
            raise
