"""The command `onebert demo`."""

from typing import Annotated

import typer


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the server up afterwards, until Ctrl-C, and say what to try.")
    ] = False,
) -> None:
    """Show the whole way for real, in a minute or two: train three deltas, serve them together, classify.

    Three small tasks that come with the project are trained, two of them as heads alone. A server on a free loopback
    port takes the deltas while it answers. The demo checks everything that it shows, and ends with exit code 1 if
    something is wrong. It leaves no files and no processes behind.
    """
    # Imported here because `onebert --help` imports this file.
    from onebert_demo.story import tell  # noqa: PLC0415

    tell(keep)
