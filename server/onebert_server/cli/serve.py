"""The command `serve`."""

from typing import Annotated

import typer

from onebert_server.cli.options import Base, DataDir, Device, Dtype

LISTENING = "Address"


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
            help="How many processes take HTTP and tokenize for the one that computes; default 0: it does all itself.",
            rich_help_panel=LISTENING,
        ),
    ] = None,
    base: Base = None,
    dtype: Dtype = None,
    device: Device = None,
    data_dir: DataDir = None,
) -> None:
    """Serve classifiers over HTTP until SIGTERM or Ctrl-C.

    Every other setting is an ONEBERT_… environment variable (docs/settings.md); a misspelled one is refused. When the
    server is ready, it prints one line on standard output. On an address that other machines can reach it needs API
    keys (ONEBERT_API_KEYS).
    """
    from onebert_server.settings import load_settings  # noqa: PLC0415

    settings = load_settings(
        host=host, port=port, base=base, data_dir=data_dir, dtype=dtype, device=device, front_ends=front_ends
    )
    from onebert_server.run import serve as server  # noqa: PLC0415

    server.serve(settings)
