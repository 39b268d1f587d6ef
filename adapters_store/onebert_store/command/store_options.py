"""Options shared by the commands that open a store, which select it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

# Heavy imports are inside the function: `onebert --help` imports this file.
if TYPE_CHECKING:
    from onebert_store.registry.store import StoreAddress

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


def store_at(data_dir: DataDir = DEFAULT, registry: RegistryUrl = None, blobs: BlobsUrl = None) -> "StoreAddress":
    """The store that the options select."""
    from onebert_store.registry.store import StoreAddress  # noqa: PLC0415

    return StoreAddress.within(data_dir, registry, blobs)
