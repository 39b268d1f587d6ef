"""Prints the demo's chapters, commands and tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from rich.text import Text

from onebert_demo.traffic import Answer, Load
from onebert_server.client import Input, TaskResult
from onebert_store.command.console import err, out, say, show

Json = dict[str, Any]

_numbers = count(1)


@dataclass(frozen=True)
class Upload:
    """The start of a task's upload, and the task's first answer, in seconds of the monotonic clock."""

    task: str
    began: float
    ended: float


def chapter(title: str) -> None:
    """Prints the heading of the next step."""
    out.print()
    out.print(Text(f"{next(_numbers)}. {title}", style="bold"))


def command(line: str) -> None:
    """Prints a command that runs now."""
    say(Text(f"$ {line}", style="cyan"))


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Shows a spinner with the last line of a running command; yields the function that sets the line."""
    with err.status(Text(title)) as status:
        yield lambda line: status.update(Text(f"{title}: {line}"))


def trained(methods: dict[str, str], records: dict[str, Json]) -> None:
    """Prints a table with a row for each trained delta."""
    rows = [
        (
            *(name, methods[name], "head alone" if r["method"] == "head" else "delta", f"{r['delta_parameters']:,}"),
            *(f"{r['percent']:.2f} %", f"{r['test']['accuracy']:.3f}"),
            *(f"{r['file_bytes'] / 1000:.0f} kB", f"{r['seconds']:.1f}"),
        )
        for name, r in records.items()
    ]
    _table(("task", "method", "kept", "trained", "of base", "accuracy", "file", "seconds"), rows)


def uploads(first: str, uploads: Sequence[Upload], during: Sequence[Sequence[Answer]]) -> None:
    """Prints the durations of uploads, and an older task's answers meanwhile."""
    say(f"A second client asks {first} all the time. From upload to first answer, and what that client saw meanwhile:")
    times = [[answer.seconds for answer in answers] for answers in during]
    rows = [
        (upload.task, _ms(upload.ended - upload.began), str(len(seconds)), _ms(median(seconds)), _ms(max(seconds)))
        for upload, seconds in zip(uploads, times, strict=True)
    ]
    _table(("uploaded", "took", "client's answers", "median latency", "slowest"), rows)


def answers(texts: Sequence[Input], answers: Sequence[TaskResult]) -> None:
    """Prints a table with a row for each text."""
    shown = [text if isinstance(text, str) else "\n".join(text) for text in texts]
    rows = [
        (answer.task, text, str(answer.label), f"{answer.score:.3f}")
        for text, answer in zip(shown, answers, strict=True)
    ]
    show(("task", "text", "label", "score"), rows)


def fanned_out(text: str, answers: Sequence[TaskResult]) -> None:
    """Prints a table with a row for each task."""
    say(f"Asked: {text}")
    show(("task", "label", "score"), [(answer.task, str(answer.label), f"{answer.score:.3f}") for answer in answers])


def accuracies(trained: dict[str, Json], served: dict[str, float]) -> None:
    """Prints the test accuracies that the trainer and the server found."""
    rows = [
        (name, str(trained[name]["rows"]["test"]), f"{trained[name]['test']['accuracy']:.4f}", f"{accuracy:.4f}")
        for name, accuracy in served.items()
    ]
    _table(("task", "test texts", "trainer", "server"), rows)


def load(load: Load) -> None:
    """Prints throughput and latency."""
    rates = (load.texts / load.seconds, load.tokens / load.seconds)
    row = (*(f"{rate:,.0f}" for rate in rates), _ms(load.latency(50)), _ms(load.latency(99)))
    _table(("texts/s", "tokens/s", "median latency", "p99 latency"), [row])


def versions(task: str, text: str, answers: Sequence[tuple[str, TaskResult]]) -> None:
    """Prints which version answered after each move of the alias."""
    say(f"Asked {task} each time: {text}")
    rows = [
        (after, str(answer.version), str(answer.label), f"{answer.score:.3f}", f"{str(answer.digest)[:19]}…")
        for after, answer in answers
    ]
    show(("after", "version", "label", "score", "digest"), rows)


def end(seconds: float) -> None:
    """Prints the last line of a demo in which every check passed."""
    out.print()
    out.print(Text(f"Done in {seconds:.0f} seconds; everything shown was checked.", style="bold green"))


def try_this(url: str, work: Path) -> None:
    """Prints commands to try on the server that stays up."""
    post = "-H 'content-type: application/json' -d"
    lines = (
        f"export ONEBERT_URL={url}",
        "onebert status",
        "onebert classify support-routing 'My invoice has the wrong address.' --top-k 3",
        "onebert classify same-question --pair 'Can I freeze bread?' 'Does bread keep in the freezer?'",
        "onebert promote support-routing 2",
        "onebert promote support-routing --rollback",
        f"onebert inspect {work / 'review-tone.safetensors'}",
        f"onebert push {work / 'review-tone.safetensors'} --task my-own-task",
        f"""curl -s {url}/v1/tasks/review-tone/classify {post} '{{"inputs": "What a lovely day!"}}'""",
        f"""curl -s {url}/v1/fanout {post} '{{"text": "It broke at once!", "tasks": ["*"]}}'""",
    )
    out.print()
    out.print(Text(f"The server stays up until Ctrl-C; its API is at {url}/docs.", style="bold"))
    say("In another terminal:")
    for line in lines:
        command(line)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    show(columns, rows, numbers=columns[1:])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
