"""The command `serve`."""

from pathlib import Path
from typing import Annotated

import typer

LISTENING = "Address"
COMPUTING = "Base and device"


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default 127.0.0.1.", rich_help_panel=LISTENING)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes a free one; default 8000.", rich_help_panel=LISTENING)
    ] = None,
    front_ends: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes that take HTTP and tokenize beside the engine's; default 0: none.",
            rich_help_panel=LISTENING,
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Hub id or local folder of the base.", rich_help_panel=COMPUTING)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto (default), float32, bfloat16 or int8.", rich_help_panel=COMPUTING)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto (default: a GPU where there is one), cpu, cuda or cuda:N.", rich_help_panel=COMPUTING),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the registry; default onebert-data.", rich_help_panel="Data"),
    ] = None,
) -> None:
    """Serve classifiers over HTTP until SIGTERM or Ctrl-C.

    Every other setting is an ONEBERT_… environment variable (docs/settings.md); one that does not exist is refused.
    One line is printed on standard output when the server listens. Beyond loopback it needs API keys
    (ONEBERT_API_KEYS).
    """
    from onebert_server.settings import load_settings  # noqa: PLC0415

    settings = load_settings(
        host=host, port=port, base=base, data_dir=data_dir, dtype=dtype, device=device, front_ends=front_ends
    )
    from onebert_server.run import serve as server  # noqa: PLC0415

    server.serve(settings)
