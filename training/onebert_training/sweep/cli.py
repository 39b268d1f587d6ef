"""The command `onebert sweep`: its options; the work is in commands.py."""

from pathlib import Path
from typing import Annotated

import typer

from onebert_training.options import AsJson, Machine, with_options

# torch and other slow libraries are imported inside the function, so that `onebert --help` stays quick.


@with_options
def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe (.toml), which lists runs.", metavar="RECIPE")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets that the recipe names.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for records and deltas; finished runs in it are kept.")] = Path(
        "runs"
    ),
    only: Annotated[
        list[str] | None, typer.Option(help="Only this data set or method of the recipe; may be given several times.")
    ] = None,
    machine: Machine = Machine(),  # noqa: B008 - frozen
    together: Annotated[int, typer.Option(min=1, help="Runs that train in one batch.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Train every run of a recipe: many in one batch, with the results that each would have alone.

    Finished runs are not repeated, interrupted ones continue when the same command is given again.
    A line for every run goes to standard error; the results and the best deltas to standard output.
    """
    from onebert_training.sweep.commands import run_sweep  # noqa: PLC0415

    run_sweep(recipe, data, out, only or [], machine, together, as_json)
