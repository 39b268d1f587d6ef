"""`onebert diff`: compares two versions by their files and by their answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from onebert_server.cli import options
from onebert_server.cli.compare.measured import training_of
from onebert_server.cli.completion import references
from onebert_server.client import Client
from onebert_server.client.many import classify_many
from onebert_server.client.references import version_of
from onebert_store.command import console
from onebert_store.command.inspection import in_words
from onebert_store.comparison import LEVEL
from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import printable

if TYPE_CHECKING:
    from onebert_server.cli.compare.labeled import LabeledRow
    from onebert_store.file.delta import Delta
    from onebert_store.file.manifest import Manifest

# Flips shown in a table; --json has all.
MOST_FLIPS = 20


def diff(
    first: Annotated[str, typer.Argument(help=options.REFERENCE, metavar="TASK@A", autocompletion=references)],
    second: Annotated[str, typer.Argument(help="The same.", metavar="TASK@B", autocompletion=references)],
    data: Annotated[
        str | None, options.INPUT.option("Rows that both shall answer: a file, or a folder.", metavar="DATA")
    ] = None,
    split: Annotated[
        Literal["test", "validation", "train"] | None,
        options.INPUT.option("Which rows of a folder; else test, or validation if there is no test."),
    ] = None,
    slices: Annotated[
        list[str] | None,
        options.INPUT.option(
            "Count by the values of this column, too; may be given several times.", "--slice", metavar="COLUMN"
        ),
    ] = None,
    text: options.TextColumn = None,
    text_pair: options.TextPairColumn = None,
    label: Annotated[
        str | None, options.INPUT.option("Column of what is right; else by name.", "--label", metavar="COLUMN")
    ] = None,
    encoding: options.Encoding = None,
    sheet: options.Sheet = None,
    url: options.Url = options.URL,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what two versions differ in: what their files say, their sizes and scores.

    With --data both answer every row, in the same requests: what flips is listed, and where the data say what is right,
    McNemar's exact test tells whether the second is better or worse.
    """
    from onebert_server.cli.compare.labeled import labeled_rows  # noqa: PLC0415
    from onebert_store.tables.columns import Columns  # noqa: PLC0415
    from onebert_store.tables.tables import read_source  # noqa: PLC0415

    with Client(url, api_key) as client:
        versions = [version_of(client, ref) for ref in (first, second)]
        record, deltas = _compare_files(client, versions)
        record["measured"] = [training_of(client, *version) for version in versions]
    if data is not None:
        manifests = [delta.manifest for delta in deltas]
        read = read_source(data, encoding, sheet=sheet)
        rows = labeled_rows(read, split, Columns(text, text_pair, label), manifests, slices or ())
        record |= _compare_answers(url, api_key, (record["a"], record["b"]), rows, manifests)
    if as_json:
        console.print_json(record)
    else:
        _print(record)


def _compare_answers(
    url: str, api_key: str | None, refs: tuple[str, str], rows: "Sequence[LabeledRow]", manifests: "Sequence[Manifest]"
) -> dict[str, Any]:
    """Asks both versions about every row; returns `answers`, as `compared` has them, `flips`, and rows trained on."""
    from onebert_server.cli.compare.differences import answered, compared  # noqa: PLC0415
    from onebert_store.file.fingerprint import overlap_of  # noqa: PLC0415

    items = [(ref, row.input) for row in rows for ref in refs]
    with console.progress() as bar:
        task = bar.add_task("answering", total=len(items))
        results = classify_many(url, api_key, items, on_answered=lambda count: bar.advance(task, count))
    task_types = [manifest.task_type for manifest in manifests]
    both = answered(rows, results, task_types)
    flips = [{**row.row.place, "text": row.row.text, **row.in_words} for row in both if row.flipped]
    overlaps = {
        ref: overlap_of(manifest, [row.input for row in rows]) for ref, manifest in zip(refs, manifests, strict=True)
    }
    trained_on = {ref: overlap.rows for ref, overlap in overlaps.items()}
    notes = [f"{ref}: {note}" for ref, overlap in overlaps.items() for note in overlap.note]
    return {"answers": compared(both, task_types), "trained_on": trained_on, "notes": notes, "flips": flips}


def _compare_files(client: Client, versions: Sequence[tuple[str, int]]) -> "tuple[dict[str, Any], list[Delta]]":
    """Compares the files of two versions; returns the differences and both deltas.

    Raises InvalidInput if their bases differ.
    """
    from onebert_server.cli.compare.differences import manifest_differences, sizes  # noqa: PLC0415
    from onebert_store.file.format import loads  # noqa: PLC0415

    files = [client.download(*version) for version in versions]
    a, b = map(loads, files)
    if a.manifest.base.digest != b.manifest.base.digest:
        raise InvalidInput("the two versions are of different bases")
    refs = [f"{task}@{version}" for task, version in versions]
    record = {
        "a": refs[0],
        "b": refs[1],
        "manifest": {name: list(values) for name, values in manifest_differences(a, b).items()},
        "sizes": [sizes(delta, len(content)) for delta, content in zip((a, b), files, strict=True)],
    }
    return record, [a, b]


def _print(record: Mapping[str, Any]) -> None:
    rows = [
        (printable(name), *(printable(in_words(value, exact=False), 200) for value in values))
        for name, values in record["manifest"].items()
    ]
    rows += [(name, *(f"{side[name]:,}" for side in record["sizes"])) for name in ("bytes", "tensors", "numbers")]
    console.show(("", record["a"], record["b"]), [*rows, ("score", *map(_score, record["measured"]))])
    if "answers" in record:
        _print_answers(record)


def _print_answers(record: Mapping[str, Any]) -> None:
    a, b, answers, flips = record["a"], record["b"], record["answers"], record["flips"]
    for note in record["notes"]:
        console.say(f"\nnote: {note}")
    console.say(f"\n{answers['flips']} of {answers['rows']} rows are answered differently")
    if "p" in answers:
        right = answers["right"]
        console.say(
            f"right: {a} {right['a']}, {b} {right['b']}; {a} alone {answers['only_a']}, {b} alone {answers['only_b']}; "
            f"{b} is {answers['verdict']}: p = {answers['p']:.3g} by McNemar's exact test, level {LEVEL:g}"
        )
    columns = ("label", a, b) + (("rows", f"right by {a}", f"right by {b}") if "p" in answers else ())
    keys = ("a", "b", "rows", "right_a", "right_b")
    labels = answers["labels"].items()
    rows = ((_text(name), *(str(counts[key]) for key in keys if key in counts)) for name, counts in labels)
    if answers["labels"]:
        console.show(columns, rows, numbers=columns[1:])
    for column, values in answers["slices"].items():
        console.say("")
        console.show((column, "rows", "flips", *columns[4:]), _values(values), numbers=("rows", "flips", *columns[4:]))
    if not flips:
        return
    unit = "line" if "line" in flips[0] else "row"
    sides = ("a", "b", "right") if "p" in answers else ("a", "b")
    heads = ("where" if "file" in flips[0] else unit, "text", a, b, "right")[: 2 + len(sides)]
    console.say("")
    some = flips[:MOST_FLIPS]
    console.show(
        heads, ((_where(flip), printable(flip["text"], 200), *(_text(flip[side]) for side in sides)) for flip in some)
    )
    if len(flips) > MOST_FLIPS:
        console.say(f"and {len(flips) - MOST_FLIPS} more; --json has them all")


def _values(values: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, ...]]:
    return ((printable(value), *map(str, counts.values())) for value, counts in values.items())


def _where(flip: Mapping[str, Any]) -> str:
    unit = "line" if "line" in flip else "row"
    return f"{printable(flip['file'])} {unit} {flip[unit]}" if "file" in flip else str(flip[unit])


def _text(answer: str) -> str:
    return printable(answer) or "none"


def _score(measured: Mapping[str, Any]) -> str:
    if "score" not in measured:
        return "–"
    return printable(f"{measured['score']:.4f} {measured['split']} {measured['metric']}")
