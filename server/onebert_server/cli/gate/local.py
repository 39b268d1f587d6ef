"""The options of commands that move an alias about the task's gate, and a gate that the client runs."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from onebert_server.cli.options import INPUT

GateFile = Annotated[
    Path | None,
    INPUT.option(
        "A gate to run before: gate.toml; default: the gate of the task, with --data.", "--gate", metavar="FILE"
    ),
]
GateRows = Annotated[
    str | None,
    INPUT.option("Labeled rows that the gate is about, if the server does not keep them.", "--data", metavar="DATA"),
]
Force = Annotated[bool, typer.Option("--force", help="Move past the task's gate; say why with --message.")]
Message = Annotated[
    str | None, typer.Option("--message", metavar="WHY", help="Why the gate is passed over, for the audit trail.")
]


class LocalGate(NamedTuple):
    """A gate that the client runs: a file of rules, else the task's own; labeled rows, else none."""

    file: Path | None
    data: str | None
    url: str
    api_key: str | None


def local_gate(
    file: Path | None, data: str | None, force: bool, message: str | None, url: str, api_key: str | None
) -> LocalGate | None:
    """The gate of a command's options; raises BadParameter if they contradict each other."""
    if force != (message is not None) or (force and (file or data)):
        raise typer.BadParameter("to move past a gate: --force --message WHY, without --gate and --data")
    return LocalGate(file, data, url, api_key) if file or data else None
