"""Options shared by the commands `onebert store …`, which select the store."""

from pathlib import Path
from typing import Annotated

import typer

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
DEFAULT = Path("onebert-data")
