"""The command `onebert demo`."""

from typing import Annotated

import typer


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the server up afterwards, until Ctrl-C, and say what to try.")
    ] = False,
) -> None:
    """Show the main job for real, in one to three minutes: train three deltas, serve them together, classify.

    Three small tasks that come with the project are trained with three methods. A server on a free loopback port takes
    the deltas while it answers. Everything shown is checked; what does not hold ends the demo with exit code 1. Nothing
    is left behind.
    """
    # Imported here because `onebert --help` imports this file.
    from onebert_demo.story import tell  # noqa: PLC0415

    tell(keep)
