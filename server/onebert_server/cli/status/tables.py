"""The tables of `onebert status`: all tasks, the alarming ones last, where a terminal ends."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from onebert_server.client import TaskStatus
from onebert_server.contract.status import Alarm, Move, Score
from onebert_store.command import console
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE

Cell = Callable[[TaskStatus], str]
NUMBERS = ("a minute", "p95", "abstained", "cut", "feedback")
# Columns that are always shown, and others that a terminal narrower than `WIDE` has room for.
NAMING, FEW, WIDE = ("task", "live"), ("attention", "last move"), 100
# Cells between two columns, and of the narrowest column.
_GAP, _LEAST = 3, 4


def overview(tasks: Sequence[TaskStatus]) -> RenderableType:
    """A line for each task, what needs attention last; a column that says nothing of any task is left out."""
    ordered = sorted(
        tasks, key=lambda task: (bool(task.alarm or task.worse), bool(task.unavailable or task.lacks), task.name)
    )
    columns = {head: list(map(cell, ordered)) for head, cell in _columns(tasks).items()}
    wide = console.out.width >= WIDE
    shown = {head: cells for head, cells in columns.items() if head in NAMING or (any(cells) and (wide or head in FEW))}
    shown = _elided({head: [cell or "–" for cell in cells] for head, cells in shown.items()}, console.out.width)
    table = console.filled(console.table(*shown, numbers=NUMBERS), zip(*shown.values(), strict=True))
    alarms, broken = (
        (sum(map(bool, of)) for of in zip(*((t.alarm, t.unavailable) for t in tasks), strict=True)) if tasks else (0, 0)
    )
    summary = f"{_many(len(tasks), 'task')}, {_many(alarms, 'alarm')}"
    return Group(table, Text(summary + (f", {broken} with versions that cannot be loaded" if broken else "")))


def _elided(columns: Mapping[str, Sequence[str]], width: int) -> dict[str, list[str]]:
    """The cells cut so that each row fits into a line of so many cells: the widest column gives way first."""
    widths = {head: max(map(cell_len, (head, *cells))) for head, cells in columns.items()}
    while sum(widths.values()) + _GAP * (len(widths) - 1) > width and max(widths.values()) > _LEAST:
        widths[max(widths, key=widths.__getitem__)] -= 1
    return {
        head: [
            cell if cell_len(cell) <= widths[head] else set_cell_size(cell, widths[head] - 1) + "…" for cell in cells
        ]
        for head, cells in columns.items()
    }


def _columns(tasks: Sequence[TaskStatus]) -> dict[str, Cell]:
    columns: dict[str, Cell] = {
        "task": lambda task: task.name,
        "live": lambda task: task.live.words if task.live else "",
        "score": lambda task: score_text(task.score),
        "a minute": lambda task: "" if task.a_minute is None else f"{task.a_minute:.1f}",
        "p95": lambda task: "" if task.p95 is None else f"{1000 * task.p95:.0f} ms",
        "abstained": lambda task: share_text(task.abstained),
        "cut": lambda task: share_text(task.cut),
        "attention": attention,
        "gate": lambda task: "yes" if task.gate else "",
        "kept": lambda task: share_text(task.kept.share) if task.kept else "",
        "feedback": lambda task: f"{task.feedback:,}" if task.feedback else "",
        "last move": lambda task: move_text(task.last_move),
    }
    if len({task.base for task in tasks if task.base}) > 1:
        columns["base"] = lambda task: printable(task.base or "")
    return columns


def attention(task: TaskStatus) -> str:
    """An alarm, and candidates that are proven worse, versions that cannot be loaded or lack targets, in words."""
    worse = (f"version {verdict.version} is worse" for verdict in task.worse)
    broken = (f"{number} cannot be loaded" for number in task.unavailable)
    lacks = (f"version {number} does not keep {', '.join(targets)}" for number, targets in task.lacks.items())
    return ", ".join(filter(None, (alarm_text(task.alarm), *worse, *broken, *lacks)))


def score_text(score: Score | None) -> str:
    """A score with its metric and its rows."""
    return printable(f"{score.metric} {score.value:.4f} ({score.where})") if score else ""


def share_text(share: float | None) -> str:
    """A share as a percentage."""
    return "" if share is None else f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"


def alarm_text(alarm: Alarm | None) -> str:
    """An alarm in words, with the label that moved furthest."""
    if alarm is None:
        return ""
    shift = alarm.shift
    moved = f": {printable(shift.label, 40)} {share_text(shift.reference)} → {share_text(shift.live)}" if shift else ""
    return f"{alarm.words}{moved}"


def move_text(move: Move | None) -> str:
    """A move with its age and who made it."""
    alias = f"{move.alias} " if move and move.alias != LIVE else ""
    return f"{ago(move.at)}, {printable(move.who)}: {alias}{move.what}" if move else ""


def ago(at: datetime) -> str:
    """The time since then, in its largest unit."""
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
