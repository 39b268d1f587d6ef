"""The command `card`."""

from pathlib import Path
from typing import Annotated

import typer

from onebert_server.cli.completion import references
from onebert_server.cli.options import OUTPUT, REFERENCE, URL, ApiKey, Url
from onebert_server.cli.references import version_of
from onebert_server.client import Client
from onebert_store.command import console
from onebert_store.errors import InvalidInput


def card(
    source: Annotated[
        str,
        typer.Argument(
            help=f"A delta file; or, on a server, {REFERENCE}", metavar="FILE|TASK", autocompletion=references
        ),
    ],
    out: Annotated[
        Path | None,
        OUTPUT.option(
            "The Markdown file to write, such as README.md; no file is overwritten. Else it is printed.", metavar="PATH"
        ),
    ] = None,
    url: Url = URL,
    api_key: ApiKey = None,
) -> None:
    """Write a model card in the Hugging Face Hub's form from what a delta file says of itself.

    What it is, how to use it, labels, data, settings, scores beside the yardsticks, how answers are decided, and
    limitations. No license is in it: a delta file knows none.
    """
    from onebert_store.command.card import render_card  # noqa: PLC0415
    from onebert_store.disk import write_whole  # noqa: PLC0415
    from onebert_store.file.format import load_with_bytes, loads  # noqa: PLC0415

    if out is not None and out.exists():
        raise InvalidInput(f"{out} exists; name another place with --out")
    file = Path(source)
    # Task names have no slash but may have a dot.
    if file.is_file() or file.suffix == ".safetensors" or len(file.parts) > 1:
        delta, content = load_with_bytes(file)
        text = render_card(delta, file.name, len(content))
    else:
        with Client(url, api_key) as client:
            task, version = version_of(client, source)
            content = client.download(task, version)
        text = render_card(loads(content), f"{task}-{version}.safetensors", len(content), task)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_whole(out, text.encode())
    console.say(f"{out}: the card of {source}, {len(text.encode()):,} bytes")
