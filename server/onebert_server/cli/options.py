"""Options shared by several commands."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from onebert_server.cli.completion import references, task_names
from onebert_store.command import options
from onebert_store.command.options import BASE, ENCODING, SHEET, TEXT, TEXT_PAIR, Panel
from onebert_store.file.decision import Activation
from onebert_store.file.strict_json import printable

COMPUTING = Panel("Base and device")
INPUT = Panel("Input")
OUTPUT = Panel("Output")
ANSWER = Panel("Answer")
URL, CONNECTION = options.URL, options.CONNECTION

_WINDOW = re.compile(r"(?P<tokens>\d{1,5})(,(?P<overlap>\d{1,5})(,(?P<reduction>max|mean|union))?)?")

Url = options.Url
ApiKey = options.ApiKey
AsJson = Annotated[bool, OUTPUT.option("Print JSON instead of a table.", "--json")]

TaskName = Annotated[str, typer.Argument(help="Name of the task.", metavar="TASK", autocompletion=task_names)]
REFERENCE = "name (its live version), name@3 or name@alias."
Ref = Annotated[str, typer.Argument(help=REFERENCE, metavar="TASK", autocompletion=references)]

TextColumn = Annotated[str | None, INPUT.option(TEXT, "--text", metavar="COLUMN")]
TextPairColumn = Annotated[str | None, INPUT.option(TEXT_PAIR, "--text-pair", metavar="COLUMN")]
Sheet = Annotated[str | None, INPUT.option(SHEET, "--sheet", metavar="NAME")]
Encoding = Annotated[str | None, INPUT.option(ENCODING, "--encoding", metavar="NAME")]

# Per-request overrides of the task's decision (docs/guide/api.md).
TopK = Annotated[
    int | None,
    ANSWER.option(
        "How many scores to give, best first; of a span task, how many answers, at most 20.", min=1, metavar="K"
    ),
]
ScoresBy = Annotated[
    Activation | None, ANSWER.option("What makes scores of logits; else as the task says.", "--activation")
]
Threshold = Annotated[
    float | None,
    ANSWER.option("Labels over it are the answer's labels; else by the task's thresholds.", metavar="SCORE"),
]
Windows = Annotated[
    str | None,
    ANSWER.option(
        "Read long texts whole, in windows of N tokens that share OVERLAP; HOW makes one answer of theirs: max, "
        "mean or union. Else as the task says.",
        "--window",
        metavar="N[,OVERLAP[,HOW]]",
    ),
]
Energy = Annotated[
    bool,
    ANSWER.option(
        "Also give the energy of each answer, which is high where a text is like none that the task knows.", "--energy"
    ),
]

# None means the environment variable, or the setting's default.
Base = Annotated[str | None, COMPUTING.option(BASE, "--base")]
Dtype = Annotated[
    str | None, COMPUTING.option("What to compute in: auto (default), float32, bfloat16 or int8.", "--dtype")
]
Device = Annotated[
    str | None,
    COMPUTING.option("Where to compute: auto (default: a GPU where there is one), cpu, cuda or cuda:N.", "--device"),
]
DataDir = Annotated[
    Path | None,
    Panel("Data").option(
        "Where tasks and their versions are kept; default onebert-data.", "--data-dir", metavar="FOLDER"
    ),
]


def asked_of_answers(
    top_k: int | None,
    activation: "Activation | None",
    threshold: float | None,
    window: str | None,
    energy: bool = False,
    explain: bool = False,
) -> dict[str, Any]:
    """The given options as keyword arguments of the client; raises BadParameter for a malformed window."""
    options = {"top_k": top_k, "activation": activation, "threshold": threshold, "window": _window(window)}
    options |= {"energy": energy or None, "explain": explain or None}
    return {name: value for name, value in options.items() if value is not None}


def _window(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    match = _WINDOW.fullmatch(text)
    if not match:
        raise typer.BadParameter(f"--window {printable(text, 40)}: write 256, or 256,64, or 256,64,max")
    numbers = {name: int(match[name]) for name in ("tokens", "overlap") if match[name]}
    return numbers | ({"reduction": match["reduction"]} if match["reduction"] else {})


def number_of(version: str) -> int:
    """A version number from an argument; it has at most 18 digits."""
    if not re.fullmatch(r"[0-9]{1,18}", version) or int(version) == 0:
        raise typer.BadParameter(f"{printable(version, 40)!r} is not a version number")
    return int(version)
