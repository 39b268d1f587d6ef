"""Everything that a client can ask a server, once for both clients: what is sent, and what the answer means."""

import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict
from urllib.parse import quote

from onebert_server.client.exchange import Request, Steps, decode, exchange
from onebert_server.client.results import (
    AliasPlace,
    BaseFacts,
    Pushed,
    Results,
    TaskFacts,
    TaskList,
    TaskPage,
    TaskResult,
    TaskResults,
    TaskSummary,
    VersionFacts,
)
from onebert_server.limits import BODY_BYTES, MAX_EXPLAINED, MAX_ITEMS
from onebert_store.errors import InvalidInput, OneBertError, TooLarge

Input: TypeAlias = str | tuple[str, str]
"""A text, or a pair of texts; of a span task a question and its context."""

Item: TypeAlias = tuple[str, Input]
"""A reference to a task, and an input for it."""

Wait: TypeAlias = Literal["all"]
"""Which servers have to show a change before it is answered: every live one."""


class WindowOptions(TypedDict, total=False):
    """How long texts are read; what is left out is the task's `max_length`, 0, and the task type's own."""

    tokens: int
    overlap: int
    reduction: Literal["max", "mean", "union"]


class Options(TypedDict, total=False):
    """What is asked of answers in place of what their tasks say.

    Attributes:
        activation: makes scores of logits; `none` gives the logits.
        threshold: the score over which a label is among `labels`.
        window: how long texts are read.
        energy: whether answers say theirs.
    """

    activation: Literal["softmax", "sigmoid", "none"]
    threshold: float
    window: WindowOptions
    energy: bool


class OneOptions(Options, total=False):
    """Of a request for one task also `explain`: each answer says which words it is owed to."""

    explain: bool


class ManyOptions(Options, total=False):
    """Of a request for several tasks also `partial`: what cannot be answered, or is late, has an `error`."""

    partial: bool


# How a server names an input of a request.
PLACE = re.compile(r"\bbody\.(?:inputs|items)\.(\d{1,3})(?:\.\w+)?")
# Bytes that a request's body holds beside its inputs.
FRAME_BYTES = 256


def ready(timeout: float) -> Steps[bool]:
    """Whether the server answers and is ready."""
    try:
        yield from exchange(Request("GET", "/readyz", repeatable=False), timeout)
    except OneBertError:
        return False
    return True


def base(timeout: float) -> Steps[BaseFacts]:
    """The base."""
    return decode((yield from exchange(Request("GET", "/v1/base"), timeout)), BaseFacts)


def tasks(timeout: float) -> Steps[list[TaskSummary]]:
    """All tasks, page by page."""
    found: list[TaskSummary] = []
    path: str | None = "/v1/tasks"
    while path is not None:
        page = decode((yield from exchange(Request("GET", path), timeout)), TaskList)
        found += page.tasks
        path = page.next and f"/v1/tasks?after={quoted(page.next)}"
    return found


def task(name: str, timeout: float) -> Steps[TaskFacts]:
    """One task, page by page."""
    path = f"/v1/tasks/{quoted(name)}"
    page = decode((yield from exchange(Request("GET", path), timeout)), TaskPage)
    versions = page.versions
    while page.next is not None:
        page = decode((yield from exchange(Request("GET", f"{path}?after={page.next}"), timeout)), TaskPage)
        versions += page.versions
    return TaskFacts(page.name, page.aliases, page.previous, versions)


def version(name: str, number: int, timeout: float) -> Steps[VersionFacts]:
    """One version."""
    return decode((yield from exchange(Request("GET", _version_path(name, number)), timeout)), VersionFacts)


def download(name: str, number: int, timeout: float) -> Steps[bytes]:
    """A version's file."""
    return (yield from exchange(Request("GET", f"{_version_path(name, number)}/delta"), timeout)).content


def content_of(delta: bytes | Path) -> bytes:
    """The bytes of a delta file, given as they are or by its path; the one call here that waits for a disk.

    Raises:
        InvalidInput: the file cannot be read.
    """
    try:
        return delta if isinstance(delta, bytes) else delta.read_bytes()
    except OSError:
        raise InvalidInput("the delta file cannot be read") from None


def push(name: str, content: bytes, timeout: float) -> Steps[Pushed]:
    """Uploads a file; the same content is the same version, so it may be sent again."""
    headers = {"Content-Type": "application/octet-stream"}
    answer = yield from exchange(Request("PUT", f"/v1/tasks/{quoted(name)}/versions", content, headers), timeout)
    pushed = decode(answer, Pushed)
    return Pushed(task=pushed.task, version=pushed.version, digest=pushed.digest, created=answer.status_code == 201)


def move_alias(
    name: str, alias: str, number: int, expected: int | None, wait: Wait | None, timeout: float
) -> Steps[AliasPlace]:
    """Moves an alias; never sent again, since a move that was done but not heard of would then be a conflict."""
    condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
    path = _alias_path(name, alias) + (f"?wait={wait}" if wait else "")
    request = with_json("PUT", path, {"version": number}, condition, repeatable=False)
    return decode((yield from exchange(request, timeout)), AliasPlace)


def delete_alias(name: str, alias: str, expected: int, timeout: float) -> Steps[None]:
    """Deletes an alias."""
    request = Request("DELETE", _alias_path(name, alias), headers={"If-Match": f'"{expected}"'}, repeatable=False)
    yield from exchange(request, timeout)


def delete_task(name: str, timeout: float) -> Steps[None]:
    """Deletes a task."""
    yield from exchange(Request("DELETE", f"/v1/tasks/{quoted(name)}", repeatable=False), timeout)


def rename_task(name: str, new: str, timeout: float) -> Steps[None]:
    """Renames a task; never sent again, since one that was done but not heard of would then be not found."""
    request = with_json("POST", f"/v1/tasks/{quoted(name)}/rename", {"name": new}, repeatable=False)
    yield from exchange(request, timeout)


def delete_version(name: str, number: int, timeout: float) -> Steps[None]:
    """Deletes a version."""
    yield from exchange(Request("DELETE", _version_path(name, number), repeatable=False), timeout)


def classify(
    ref: str, inputs: Input | Sequence[Input], top_k: int | None, timeout: float, options: OneOptions
) -> Steps[Any]:
    """Classifies one or several inputs with one version: a TaskResult, or a list of them."""
    ask = _ask_one_task(top_k, timeout, options)
    if isinstance(inputs, str | tuple):
        return (yield from _in_parts([(ref, inputs)], ask))[0]
    quoted(ref)
    most = MAX_EXPLAINED if options.get("explain") else MAX_ITEMS
    return (yield from _in_parts([(ref, one) for one in inputs], ask, most))


def classify_items(
    items: Sequence[Item], top_k: int | None, timeout: float, options: ManyOptions
) -> Steps[list[TaskResult]]:
    """Classifies inputs of any mix of tasks."""

    def ask(part: Sequence[Item]) -> Steps[list[TaskResult]]:
        body = {"items": [{"task": ref, **_input(one)} for ref, one in part], "top_k": top_k, **options}
        answer = yield from exchange(with_json("POST", "/v1/classify", body), timeout)
        return decode(answer, TaskResults).results

    return (yield from _in_parts(items, ask))


def fanout(
    one: Input, names: Sequence[str], top_k: int | None, timeout: float, options: ManyOptions
) -> Steps[list[TaskResult]]:
    """Classifies one input with many tasks."""
    body = {**_input(one), "tasks": list(names), "top_k": top_k, **options}
    return decode((yield from exchange(with_json("POST", "/v1/fanout", body), timeout)), TaskResults).results


Ask: TypeAlias = Callable[[Sequence[Item]], Steps[list[TaskResult]]]


def _ask_one_task(top_k: int | None, timeout: float, options: OneOptions) -> Ask:
    """Asks the one task that all items name."""

    def ask(part: Sequence[Item]) -> Steps[list[TaskResult]]:
        body = {"inputs": [_input(one) for _, one in part], "top_k": top_k, **options}
        answer = yield from exchange(with_json("POST", f"/v1/tasks/{quoted(part[0][0])}/classify", body), timeout)
        found = decode(answer, Results)
        by: dict[str, Any] = {"task": found.task, "version": found.version, "digest": found.digest}
        return [
            TaskResult(**by, **{name: getattr(one, name) for name in one.__struct_fields__}) for one in found.results
        ]

    return ask


def _in_parts(items: Sequence[Item], ask: Ask, most: int = MAX_ITEMS) -> Steps[list[TaskResult]]:
    """Asks for as many items at a time as a server takes; a reference means in every part what it meant in its first.

    Raises:
        OneBertError: a part was refused; the detail names inputs by their place among all, from 0.
    """
    waiting = deque(cut(items, most))
    results: list[TaskResult] = []
    found: dict[str, str] = {}
    while waiting:
        part = waiting.popleft()
        try:
            answers = yield from ask([(found.get(ref, ref), one) for ref, one in part])
        except TooLarge:
            # A server may be set to smaller bodies than the default, or the answers may be what is too large.
            if len(part) == 1:
                raise
            half = len(part) // 2
            waiting.extendleft((part[half:], part[:half]))
            continue
        except OneBertError as error:
            error.detail = _renumbered(error.detail, len(results))
            error.args = (error.detail,)
            raise
        results += answers
        both = zip(part, answers, strict=True)
        found |= {ref: f"{one.task}@{one.version}" for (ref, _), one in both if one.version is not None}
    return results


def _renumbered(detail: str, start: int) -> str:
    """`body.inputs.3.text: …` of a request that began with input 64 is `input 67: …`."""
    return PLACE.sub(lambda found: f"input {start + int(found[1])}", detail)


def cut(items: Sequence[Item], most: int = MAX_ITEMS) -> list[list[Item]]:
    """Items in parts of at most so many items and `BODY_BYTES` bytes of JSON."""
    parts: list[list[Item]] = []
    room = 0
    for item in items:
        size = len(_json({"task": item[0], **_input(item[1])})) + 2
        if not parts or len(parts[-1]) == most or size > room:
            parts.append([])
            room = BODY_BYTES - FRAME_BYTES
        parts[-1].append(item)
        room -= size
    return parts


def with_json(
    method: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None, repeatable: bool = True
) -> Request:
    """A request with a body of JSON.

    Raises:
        InvalidInput: JSON has nothing for what is in the body.
    """
    return Request(method, path, _json(body), {"Content-Type": "application/json", **(headers or {})}, repeatable)


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise InvalidInput("a text is not valid Unicode") from None
    except ValueError:
        raise InvalidInput("a number is not finite") from None
    except TypeError:
        raise InvalidInput("an input is a text, or a tuple of two texts") from None


def _input(one: Input) -> dict[str, Any]:
    if isinstance(one, tuple) and len(one) == 2:
        return {"text": one[0], "text_pair": one[1]}
    if not isinstance(one, str):
        raise InvalidInput("an input is a text, or a tuple of two texts")
    return {"text": one}


def _version_path(name: str, number: int) -> str:
    return f"/v1/tasks/{quoted(name)}/versions/{number}"


def _alias_path(name: str, alias: str) -> str:
    return f"/v1/tasks/{quoted(name)}/aliases/{quoted(alias)}"


def quoted(name: str) -> str:
    """A name or reference as one segment of a path; an empty one would be another route."""
    if not name or not name.isascii():
        raise InvalidInput("a name is made of ASCII letters and digits")
    return quote(name, safe="@")
