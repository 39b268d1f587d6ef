"""`onebert blend`: one delta file of several files' weighted mean parameters."""

from pathlib import Path
from typing import Annotated

import typer

from onebert_store.command import console
from onebert_store.file.strict_json import printable


def blend(
    parts: Annotated[
        list[str],
        typer.Argument(
            help="A delta file with its weight, as A.safetensors=0.8; the weights are 1 together.",
            metavar="FILE=WEIGHT",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The delta file to write.", metavar="FILE")],
) -> None:
    """Blend delta files: write one file whose model has the weighted mean of each of their models' parameters.

    The files have one base, task type, pooling, form of head, and the same labels. Thresholds, temperature and maximum
    length are those of the file with the largest weight. `onebert push` uploads the new file like any other.
    """
    from onebert_store.disk import check_writable, write_whole  # noqa: PLC0415
    from onebert_store.file.blend import blend as blended  # noqa: PLC0415
    from onebert_store.file.format import dumps, load  # noqa: PLC0415

    files, weights = zip(*map(_read, parts), strict=True)
    check_writable("--out", out, files)
    delta = blended([load(file) for file in files], weights)
    content = dumps(delta)
    write_whole(out, content)
    console.say(f"{out}: {len(content):,} bytes ({delta.digest[:19]}…)")


def _read(part: str) -> tuple[Path, float]:
    file, _, weight = part.rpartition("=")
    try:
        return Path(file), float(weight)
    except ValueError:
        raise typer.BadParameter(f"{printable(part, 200)!r} is not FILE=WEIGHT, as A.safetensors=0.8") from None
