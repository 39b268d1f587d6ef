"""The commands `serve`, `push`, `classify`, `tasks` and `promote`."""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from onebert_store import console
from onebert_store.errors import InvalidInput
from onebert_store.strict_json import shown

# Heavy imports are inside the commands: `onebert --help` imports this file.
if TYPE_CHECKING:
    from rich.table import Table

    from onebert_server.client import Client, Input

SHOWN_TEXT = 60

Url = Annotated[str, typer.Option("--url", envvar="ONEBERT_URL", help="Address of the server.")]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", envvar="ONEBERT_API_KEY", help="Key, where the server wants one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
URL = "http://127.0.0.1:8000"


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one; default 8000.")] = None,
    base: Annotated[str | None, typer.Option(help="Hub id or local folder of the base.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the registry; default onebert-data.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto (default), float32, bfloat16 or int8.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu (default), cuda or cuda:N.")] = None,
    front_ends: Annotated[
        int | None, typer.Option(help="Processes that take HTTP and tokenize beside the engine's; default 0: none.")
    ] = None,
) -> None:
    """Serve classifiers over HTTP until SIGTERM or Ctrl-C.

    Everything else is set by ONEBERT_… environment variables (docs/settings.md). One line is printed when the server
    listens, and it listens when it is ready. Beyond loopback it needs API keys (ONEBERT_API_KEYS).
    """
    from onebert_server.settings import load_settings  # noqa: PLC0415

    settings = load_settings(
        host=host, port=port, base=base, data_dir=data_dir, dtype=dtype, device=device, front_ends=front_ends
    )
    from onebert_server import serve as server  # noqa: PLC0415

    server.serve(settings)


def push(
    file: Annotated[Path, typer.Argument(help="The delta file that `onebert train` wrote.", metavar="FILE")],
    task: Annotated[str | None, typer.Option(help="Task to add it to; default: the task it was trained for.")] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make it live at once.")] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Upload a delta as the next version of a task.

    The server checks it, and compares its answers with those that the trainer recorded, before it takes it. The first
    version of a task is live; a later one becomes live with --promote or with `onebert promote`. The same content is
    the same version, however often it is pushed.
    """
    from onebert_store.format import load, read_file  # noqa: PLC0415

    trained_for = load(file).manifest.training.get("task")
    name = task or (trained_for if isinstance(trained_for, str) else None)
    if name is None:
        raise InvalidInput("the file does not name its task; use --task")
    with _client(url, api_key) as client:
        pushed = client.push(name, read_file(file))
        moved = _move(client, name, "live", pushed["version"]) if promote else None
    if as_json:
        console.print_json(pushed | ({"promoted": moved} if moved else {}))
        return
    state = "is version" if pushed["created"] else "was already version"
    console.out.print(f"{name}: {file.name} {state} {pushed['version']} ({pushed['digest'][:19]}…)")
    if moved:
        _print_move(moved)
    elif pushed["created"] and pushed["version"] > 1:
        console.out.print(f"`onebert promote {name} {pushed['version']}` makes it live")


def classify(
    task: Annotated[str, typer.Argument(help="name, name@3 or name@alias", metavar="TASK")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; without any, standard input.", metavar="TEXT")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A text per line; .jsonl: objects with text and maybe text_pair.")
    ] = None,
    pair: Annotated[
        bool, typer.Option("--pair", help="Inputs are pairs: arguments two by two, lines split at their tab.")
    ] = False,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="How many scores to give, best first; of a span task, how many answers, at most 20."),
    ] = None,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per input, as they come.")] = False,
) -> None:
    """Classify texts with a task: arguments, a file, or standard input with a text per line; blank lines are skipped.

    A token task labels every word, or finds entities where its labels are BIO; a span task takes pairs of a question
    and a context. Results come in batches while the input is read, so that an error further on loses none of them.
    """
    from onebert_server.schemas import MAX_ITEMS  # noqa: PLC0415

    if texts and file:
        raise typer.BadParameter("texts come as arguments or from --file, not both")
    inputs = _arguments(texts, pair) if texts else _lines(file, pair)
    with _client(url, api_key) as client, console.progress(with_results=True) as bar:
        done = bar.add_task("classifying", total=None, visible=file is not None)
        while batch := list(islice(inputs, MAX_ITEMS)):
            answer = client.classify(task, batch, top_k)
            if as_json:
                by = {name: answer[name] for name in ("task", "version", "digest")}
                for result in answer["results"]:
                    typer.echo(json.dumps(by | result, ensure_ascii=False))
            else:
                console.out.print(_results(batch, answer["results"], top_k))
            bar.advance(done, len(batch))


def tasks(
    task: Annotated[str | None, typer.Argument(help="Show the versions of this task.", metavar="TASK")] = None,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks of a server, or the versions of one task."""
    from rich.table import Table  # noqa: PLC0415

    with _client(url, api_key) as client:
        found: Any = client.task(task) if task else client.tasks()
    if as_json:
        console.print_json(found)
        return
    if task:
        table = Table("version", "aliases", "method", "labels", "bytes", "created", "status")
        for v in found["versions"]:
            aliases = ", ".join(name for name, at in found["aliases"].items() if at == v["version"])
            facts = (v["version"], aliases, v["method"], v["labels"], v["size"], v["created_at"], v["status"])
            table.add_row(*map(str, facts))
    else:
        table = Table("task", "versions", "aliases")
        for t in found:
            before = {name: f" (before: {version})" for name, version in t["previous"].items()}
            aliases = ", ".join(f"{name} → {version}{before.get(name, '')}" for name, version in t["aliases"].items())
            table.add_row(t["name"], str(len(t["versions"])), aliases)
    console.out.print(table)


def promote(
    task: Annotated[str, typer.Argument(help="Name of the task.", metavar="TASK")],
    version: Annotated[int | None, typer.Argument(help="Version to point at.", metavar="VERSION", min=1)] = None,
    alias: Annotated[str, typer.Option(help="Alias to move; it is created if need be.")] = "live",
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Move back to where it pointed before; a second time undoes the first.")
    ] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Point an alias of a task at a version, or roll it back.

    The move is a compare-and-set: if somebody else moved the alias meanwhile, it fails and changes nothing. Requests in
    flight finish with the version they began with.
    """
    if (version is None) != rollback:
        raise typer.BadParameter("give a VERSION, or --rollback")
    with _client(url, api_key) as client:
        moved = _move(client, task, alias, version)
    if as_json:
        console.print_json(moved)
    else:
        _print_move(moved)


def _client(url: str, api_key: str | None) -> "Client":
    from onebert_server.client import Client  # noqa: PLC0415

    return Client(url, api_key)


def _move(client: "Client", task: str, alias: str, version: int | None) -> dict[str, Any]:
    """Moves the alias from where it is; back to where it was before where no version is given."""
    found = client.task(task)
    current = found["aliases"].get(alias)
    if version is None:
        version = _version_before(found, alias)
    if version != current:
        client.move_alias(task, alias, version, expected=current)
    return {"task": task, "alias": alias, "from": current, "to": version}


def _version_before(task: dict[str, Any], alias: str) -> int:
    ref = f"{task['name']}@{alias}"
    before: int | None = task["previous"].get(alias)
    if before is None:
        raise InvalidInput(f"{ref} was never at another version")
    if before not in {version["version"] for version in task["versions"]}:
        raise InvalidInput(f"{ref} was at version {before} before, which is deleted; name a version")
    return before


def _print_move(moved: dict[str, Any]) -> None:
    ref = f"{moved['task']}@{moved['alias']}"
    if moved["from"] == moved["to"]:
        console.out.print(f"{ref}: is at version {moved['to']} already")
        return
    console.out.print(f"{ref}: {moved['from'] or 'new'} → {moved['to']}")
    if moved["from"]:
        back = f"onebert promote {moved['task']} {moved['from']}"
        option = "" if moved["alias"] == "live" else f" --alias {moved['alias']}"
        console.out.print(f"to go back: {back}{option}")


def _arguments(texts: list[str], pair: bool) -> "Iterator[Input]":
    if not pair:
        return iter(texts)
    if len(texts) % 2:
        raise typer.BadParameter("pairs need an even number of texts")
    return zip(texts[::2], texts[1::2], strict=True)


def _lines(file: Path | None, pair: bool) -> "Iterator[Input]":
    if file is None:
        yield from _inputs(sys.stdin.buffer, as_objects=False, pair=pair)
        return
    try:
        opened = file.open("rb")
    except OSError:
        raise InvalidInput("the file of texts cannot be read") from None
    with opened:
        yield from _inputs(opened, file.suffix == ".jsonl", pair)


def _inputs(lines: Iterable[bytes] | BinaryIO, as_objects: bool, pair: bool) -> "Iterator[Input]":
    """One input per line that is not blank; a line that is not one is an error."""
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            line = raw.decode().rstrip("\r\n")
            found = _object(line) if as_objects else tuple(line.split("\t")) if pair else (line,)
        except ValueError:
            raise InvalidInput(
                f"line {number} is not {'a JSON object with a text' if as_objects else 'UTF-8'}"
            ) from None
        if not all(part.strip() for part in found) or len(found) > 2 or (pair and len(found) != 2):
            raise InvalidInput(f"line {number} does not hold {'two texts' if pair else 'a text'}")
        yield found[0] if len(found) == 1 else (found[0], found[1])


def _object(line: str) -> tuple[str, ...]:
    match json.loads(line):
        case {"text": str(text), "text_pair": str(second)}:
            return text, second
        case {"text": str(text)}:
            return (text,)
    raise ValueError


def _results(batch: "list[Input]", results: list[dict[str, Any]], top_k: int | None) -> "Table":
    """One row per input; of token and span tasks one per finding, under the input's text."""
    from rich.table import Table  # noqa: PLC0415

    found = next(name for name in ("label", "answers", "entities", "words") if name in results[0])
    columns = {"answers": ("answer",), "entities": ("entity", "label"), "words": ("word", "label")}
    table = Table("text", *columns.get(found, ("label",)), "score")
    for one, result in zip(batch, results, strict=True):
        text = shown(one if isinstance(one, str) else " | ".join(one), SHOWN_TEXT)
        if found == "label":
            table.add_row(text, *_prediction(result, top_k))
            continue
        source = one if isinstance(one, str) else one[1]
        rows = [_finding(source, each) for each in result[found]]
        for place, row in enumerate(rows or [()]):
            table.add_row("" if place else text, *row)
    return table


def _prediction(result: dict[str, Any], top_k: int | None) -> tuple[str, str]:
    label = ", ".join(result["labels"]) if "labels" in result else result["label"]
    if not top_k:
        return label, f"{result['score']:.3f}"
    return label, ", ".join(f"{name} {score:.3f}" for name, score in result["scores"].items())


def _finding(source: str, found: dict[str, Any]) -> tuple[str, ...]:
    """A stretch of the text, its label if it has one, and its score."""
    label = (found["label"],) if "label" in found else ()
    return shown(source[found["start"] : found["end"]], SHOWN_TEXT), *label, f"{found['score']:.3f}"
