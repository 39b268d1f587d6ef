"""`onebert check --out`: what is mended in a copy of the data, written and shown."""

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebert_store.command import console
from onebert_store.command.inspection import ranges
from onebert_store.disk import check_writable
from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.file.strict_json import printable
from onebert_store.tables.tables import Faults
from onebert_store.tables.writers import check_ending
from onebert_training.data.examination import MAX_LISTED
from onebert_training.data.mending import Mended, mend
from onebert_training.data.options import DataOptions


@dataclass(frozen=True)
class Mending:
    """The mending of a copy of the data at `out`; nothing without `out`."""

    fold_labels: bool = False
    drop_duplicates: bool = False
    out: Path | None = None

    def require_output(self, data: str) -> None:
        """Raises InvalidSettings, before any work, unless there is something to mend and a place for the copy."""
        mends = self.fold_labels or self.drop_duplicates
        if mends != (self.out is not None):
            raise InvalidSettings("--fold-labels and --drop-duplicates write a mended copy: --out goes with them")
        if self.out is not None:
            check_ending("--out", self.out)
            check_writable("--out", self.out, [Path(data)])
            console.note_replaced(self.out, "by the mended copy")

    def of(self, data: str, reading: DataOptions, faults: Faults) -> Mended:
        """The mended data; `faults` gets rows that cannot be read. Raises InvalidData for a file that breaks off."""
        source = reading.read(data, faults)
        if faults.broken:  # the copy would end where reading ends
            raise InvalidData(f"nothing is written: {faults.broken[0]}")
        return mend(source, reading, self.fold_labels, self.drop_duplicates)


def mended_facts(mended: Mended, out: Path, unreadable: int) -> dict[str, Any]:
    """Counts of mended rows as JSON; `unreadable` rows are not in the copy."""
    dropped = [{"file": file, unit: number} for file, unit, number in mended.dropped[:MAX_LISTED]]
    return {
        "out": str(out),
        "rows": mended.table.rows,
        "folded": mended.folded,
        "changed": mended.changed,
        "dropped": {"rows": len(mended.dropped), "first": dropped},
        "unreadable": unreadable,
    }


def mended_lines(facts: Mapping[str, Any] | None) -> list[str]:
    """The mended things, a line each; no line for data that is examined only."""
    if facts is None:
        return []
    lines = [f"folded: {_seen(name)} → {_seen(label)}" for name, label in facts["folded"].items()]
    dropped, unreadable = facts["dropped"], facts["unreadable"]
    listed = rows_by_file(dropped["first"], lambda _: "an earlier row has the same text and label")
    lines += [f"dropped: {line}" for line in listed]
    if (rest := dropped["rows"] - len(dropped["first"])) > 0:
        lines.append(f"dropped: and {rest:,} more rows")
    counts = f"{facts['changed']:,} labels changed, {dropped['rows']:,} repeated and {unreadable:,} unreadable left out"
    return [*lines, f"written: {facts['out']}, rows: {facts['rows']:,}; {counts}"]


def _seen(label: str) -> str:
    """A label in one line; its characters that look like others are written as escapes."""
    drawn = unicodedata.normalize("NFC", label) == label and label.isprintable()
    return printable(label) if drawn else printable(ascii(label)[1:-1])


def rows_by_file(rows: Sequence[Mapping[str, Any]], reason: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """The rows of each file, grouped by reason: `a.csv lines 7, 9-12: the text is empty`."""
    numbers = defaultdict[tuple[str, str, str], list[int]](list)
    for row in rows:
        unit = "line" if "line" in row else "row"
        numbers[row["file"], unit, reason(row)].append(row[unit])
    return [
        f"{file} {unit}{'s' * (len(row_numbers) > 1)} {ranges(row_numbers, dash='-')}: {message}"
        for (file, unit, message), row_numbers in numbers.items()
    ]
