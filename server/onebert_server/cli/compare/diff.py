"""`onebert diff`: compares two versions by their files and by their answers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from onebert_server.cli import options
from onebert_server.cli.completion import references
from onebert_server.cli.life import version_of
from onebert_server.cli.tasks import training_of
from onebert_server.client import Client
from onebert_store.command import console
from onebert_store.command.inspection import in_words
from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import shown

if TYPE_CHECKING:
    from onebert_server.cli.labeled import LabeledRow
    from onebert_store.file.delta import Delta

# Rows per request: half of the request limit, since both versions answer each.
TOGETHER = 32
# Flips shown in a table; --json has all.
MOST_FLIPS = 20
_BARS = " ▁▂▃▄▅▆▇█"

Ref = Annotated[str, typer.Argument(help=options.REFERENCE, metavar="TASK@A", autocompletion=references)]


def diff(
    first: Ref,
    second: Annotated[str, typer.Argument(help="The same.", metavar="TASK@B", autocompletion=references)],
    data: Annotated[
        str | None, options.INPUT.option("Rows that both shall answer: a file, or a folder.", metavar="DATA")
    ] = None,
    split: Annotated[
        Literal["test", "validation", "train"] | None,
        options.INPUT.option("Which rows of a folder; else test, or validation if there is no test."),
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
    """Show what two versions differ in: what their files say, their sizes and scores, what each changes in the base.

    With --data both answer every row, in the same requests: what flips is listed, and where the data say what is right,
    McNemar's exact test tells whether the one is better than the other.
    """
    from onebert_server.cli.compare.differences import manifest_differences, norms, sizes  # noqa: PLC0415
    from onebert_server.cli.labeled import labeled_rows  # noqa: PLC0415
    from onebert_store.file.format import loads  # noqa: PLC0415
    from onebert_store.tables.columns import Columns  # noqa: PLC0415
    from onebert_store.tables.tables import read_source  # noqa: PLC0415

    columns = Columns(text, text_pair, label)
    read = None if data is None else read_source(data, encoding, sheet=sheet)
    with Client(url, api_key) as client:
        found = [version_of(client, ref) for ref in (first, second)]
        refs = [f"{task}@{version}" for task, version in found]
        files = [client.download(*one) for one in found]
        a, b = map(loads, files)
        if a.manifest.base.digest != b.manifest.base.digest:
            raise InvalidInput("the two versions are of different bases")
        base = client.base()
        symbols = next((one.symbols for one in base.bases or [] if one.digest == a.manifest.base.digest), base.symbols)
        record: dict[str, Any] = {
            "a": refs[0],
            "b": refs[1],
            "manifest": {name: list(values) for name, values in manifest_differences(a, b).items()},
            "sizes": [sizes(delta, len(content)) for delta, content in zip((a, b), files, strict=True)],
            "measured": [training_of(client, *one) for one in found],
            "norms": norms(a, b, symbols),
        }
        if read is not None:
            rows = labeled_rows(read, split, columns, (a.manifest, b.manifest))
            record |= _answers(client, refs, (a, b), rows)
    if as_json:
        console.print_json(record)
        return
    _print(record)


def _answers(
    client: Client, refs: Sequence[str], deltas: "Sequence[Delta]", rows: "Sequence[LabeledRow]"
) -> dict[str, Any]:
    from onebert_server.cli.compare.differences import Answered, answer_of, compared  # noqa: PLC0415

    types = [delta.manifest.task_type for delta in deltas]
    answered: list[Answered] = []
    with console.progress() as bar:
        done = bar.add_task("answering", total=len(rows))
        for start in range(0, len(rows), TOGETHER):
            part = rows[start : start + TOGETHER]
            results = client.classify_items([(ref, row.input) for row in part for ref in refs])
            said = [answer_of(one, types[place % 2]) for place, one in enumerate(results)]
            for row, a, b in zip(part, said[::2], said[1::2], strict=True):
                text = row.input if isinstance(row.input, str) else " | ".join(row.input)
                answered.append(Answered(row.place, text, a, b, row.right))
            bar.advance(done, len(part))
    apart = [one for one in answered if one.a != one.b]
    flips = [{**one.place, "text": one.text, "a": one.a, "b": one.b, "right": one.right} for one in apart]
    return {"answers": compared(answered), "flips": flips}


def _print(record: Mapping[str, Any]) -> None:
    rows = [
        (shown(name), *(shown(in_words(value, exact=False), 200) for value in values))
        for name, values in record["manifest"].items()
    ]
    rows += [(name, *(f"{side[name]:,}" for side in record["sizes"])) for name in ("bytes", "tensors", "numbers")]
    console.show(("", record["a"], record["b"]), [*rows, ("score", *map(_score, record["measured"]))])
    _print_norms(record)
    if "answers" in record:
        _print_answers(record)


def _print_norms(record: Mapping[str, Any]) -> None:
    from onebert_server.cli.compare.differences import by_symbol  # noqa: PLC0415

    found = by_symbol(record["norms"])
    if not found:
        return
    most = max((apart for one in found for apart in one["layers"].values() if apart is not None), default=0.0)

    def row(one: Mapping[str, Any]) -> tuple[str, ...]:
        numbers = ("–" if one[side] is None else f"{one[side]:.3g}" for side in ("a", "b", "apart"))
        return shown(one["symbol"]), one["kind"], *numbers, _bars(one["layers"].values(), most)

    console.say("")
    console.out.print(console.title("What each changes in the base (root mean square)"))
    console.show(("changes", "kind", record["a"], record["b"], "apart", "by layer"), map(row, found))


def _print_answers(record: Mapping[str, Any]) -> None:
    a, b, found, flips = record["a"], record["b"], record["answers"], record["flips"]
    console.say(f"\n{found['flips']} of {found['rows']} rows are answered differently")
    if "p" in found:
        right = found["right"]
        console.say(
            f"right: {a} {right['a']}, {b} {right['b']}; {a} alone {found['only_a']}, {b} alone {found['only_b']}; "
            f"p = {found['p']:.3g} by McNemar's exact test"
        )
    columns = ("label", a, b) + (("rows", f"right by {a}", f"right by {b}") if "p" in found else ())
    keys = ("a", "b", "rows", "right_a", "right_b")
    labels = found["labels"].items()
    rows = ((_said(name), *(str(counts[key]) for key in keys if key in counts)) for name, counts in labels)
    console.show(columns, rows, numbers=columns[1:])
    if not flips:
        return
    unit = "line" if "line" in flips[0] else "row"
    sides = ("a", "b", "right") if "p" in found else ("a", "b")
    heads = ("where" if "file" in flips[0] else unit, "text", a, b, "right")[: 2 + len(sides)]
    console.say("")
    some = flips[:MOST_FLIPS]
    console.show(heads, ((_where(one), shown(one["text"], 200), *(_said(one[side]) for side in sides)) for one in some))
    if len(flips) > MOST_FLIPS:
        console.say(f"and {len(flips) - MOST_FLIPS} more; --json has them all")


def _where(flip: Mapping[str, Any]) -> str:
    unit = "line" if "line" in flip else "row"
    return f"{shown(flip['file'])} {unit} {flip[unit]}" if "file" in flip else str(flip[unit])


def _said(answer: str) -> str:
    """An answer for a table; a multi_label answer may be empty."""
    return shown(answer) or "none"


def _bars(numbers: Any, most: float) -> str:
    """A bar per layer, relative to the largest."""
    return "".join("·" if one is None else _BARS[round(8 * one / most) if most else 0] for one in numbers)


def _score(measured: Mapping[str, Any]) -> str:
    if "score" not in measured:
        return "–"
    return shown(f"{measured['score']:.4f} {measured['split']} {measured['metric']}")
