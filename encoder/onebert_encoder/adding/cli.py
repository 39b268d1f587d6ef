"""The commands `onebert base …`: add a base, list the added ones, check one."""

from pathlib import Path
from typing import Annotated

import typer

from onebert_store.command import console
from onebert_store.command.options import AsJson

base = typer.Typer(
    help="Look after bases: write one as a folder of its own, from which a server starts sooner and without "
    "transformers; list and check such folders.",
    no_args_is_help=True,
)


@base.command()
def add(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A Hub id, or a folder with config.json, tokenizer and safetensors weights; else all-MiniLM-L6-v2.",
            metavar="MODEL",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Its name for `--base`; else the Hub id or the folder's name.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write this new folder, to be named by `--base FOLDER`; else one among the added bases."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a base folder: weights, tokenizer, and vectors of the plain Hugging Face model, which ours must equal.

    A model whose vectors differ by more than 1e-4 is refused, and nothing is written. `--base NAME` then finds the
    folder in ~/.local/share/onebert/bases (XDG_DATA_HOME) before the Hugging Face cache.
    """
    # torch is imported by the commands that need it: `onebert --help` imports this file.
    from onebert_encoder.adding.adding import add_base  # noqa: PLC0415
    from onebert_encoder.base.source import DEFAULT_BASE  # noqa: PLC0415

    with console.busy("loading the base and comparing it with transformers"):
        added = add_base(source or DEFAULT_BASE, name, out)
    spec = added.base.spec
    if as_json:
        facts = {"name": added.name, "digest": spec.digest, "folder": str(added.folder), "new": added.new}
        console.print_json(facts | {"parameters": spec.num_parameters, "largest_difference": added.error})
        return
    console.say(f"{'added' if added.new else 'is there already'}: {added.folder}, {spec.digest}")
    console.say(f"{spec.num_parameters:,} parameters; vectors differ from transformers' by at most {added.error:.1e}")
    console.say(f"next: onebert serve --base {added.name}")


@base.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the added bases, by the names for `--base`."""
    from onebert_encoder.base.folder import listed  # noqa: PLC0415

    bases = list(listed())
    columns = ("name", "architecture", "bytes", "digest", "folder")
    rows = ([str(base.get(c, base.get("problem") if c == "digest" else "")) for c in columns] for base in bases)
    console.show(columns, rows, numbers=("bytes",), record=bases if as_json else None)


@base.command()
def check(
    name: Annotated[str, typer.Argument(help="An added base, or a base folder.", metavar="BASE")],
    as_json: AsJson = False,
) -> None:
    """Read every file of a base folder, and compare digests and golden vectors; needs no transformers."""
    from onebert_encoder.adding.adding import check_named  # noqa: PLC0415

    recorded, error = check_named(name)
    if as_json:
        console.print_json({"name": recorded.name, "digest": recorded.digest, "largest_difference": error})
    else:
        console.say(f"{recorded.name} is whole, {recorded.digest}; largest difference {error:.1e}")
