"""A small synchronous client of the native HTTP interface; needs neither torch nor the server's code."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import httpx

from onebert_store.errors import InvalidInput, OneBertError, ServerUnreachable

Json = dict[str, Any]
Input = str | tuple[str, str]


class Client:
    """Speaks to one server; every refusal comes back as the OneBertError of its code.

    Args:
        url: the server's address, e.g. `http://127.0.0.1:8000`.
        api_key: sent as a bearer token when given.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 60.0) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if not url.startswith(("http://", "https://")):
            raise InvalidInput("the server's URL starts with http:// or https://")
        self._url = url
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, UnicodeEncodeError):
            raise InvalidInput("the URL or the API key is not valid") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the server answers and is ready."""
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def base(self) -> Json:
        """The base, and the shapes that a delta for it may touch."""
        return self._json("GET", "/v1/base")

    def tasks(self) -> list[Json]:
        """All tasks: name, aliases, versions."""
        return cast("list[Json]", self._json("GET", "/v1/tasks")["tasks"])

    def task(self, name: str) -> Json:
        """One task with a summary of each version."""
        return self._json("GET", f"/v1/tasks/{_quoted(name)}")

    def version(self, name: str, version: int) -> Json:
        """One version with its manifest."""
        return self._json("GET", f"/v1/tasks/{_quoted(name)}/versions/{version}")

    def download(self, name: str, version: int) -> bytes:
        """The canonical bytes of a version's delta file."""
        return self._send("GET", f"/v1/tasks/{_quoted(name)}/versions/{version}/delta").content

    def push(self, task: str, delta: bytes | Path) -> Json:
        """Uploads a delta file; equal content is an equal version.

        Returns:
            task, version, digest, and `created`: False where the content was there already.
        """
        content = delta if isinstance(delta, bytes) else _read(delta)
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._send("PUT", f"/v1/tasks/{_quoted(task)}/versions", content=content, headers=headers)
        return {**answer.json(), "created": answer.status_code == 201}

    def move_alias(self, task: str, alias: str, version: int, expected: int | None) -> Json:
        """Points an alias at a version if it still points at `expected` (None: if it does not exist)."""
        condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
        path = f"/v1/tasks/{_quoted(task)}/aliases/{_quoted(alias)}"
        return self._json("PUT", path, json={"version": version}, headers=condition)

    def delete_alias(self, task: str, alias: str, expected: int) -> None:
        """Deletes an alias if it still points at `expected`."""
        path = f"/v1/tasks/{_quoted(task)}/aliases/{_quoted(alias)}"
        self._send("DELETE", path, headers={"If-Match": f'"{expected}"'})

    def delete_version(self, task: str, version: int) -> None:
        """Deletes a version that no alias points at."""
        self._send("DELETE", f"/v1/tasks/{_quoted(task)}/versions/{version}")

    def classify(self, ref: str, inputs: Input | Sequence[Input], top_k: int | None = None) -> Json:
        """Classifies one or several inputs with `name`, `name@3` or `name@alias`; a tuple is a pair of texts.

        Args:
            ref: of any task type; docs/api.md says what each answers. A span task takes (question, context).
            inputs: one or several.
            top_k: how many scores to give, best first (None: all); of a span task, how many answers (None: one, at
                most 20).
        """
        several = [inputs] if isinstance(inputs, str | tuple) else inputs
        body = {"inputs": [_input(one) for one in several], "top_k": top_k}
        return self._json("POST", f"/v1/tasks/{_quoted(ref)}/classify", json=body)

    def classify_items(self, items: Sequence[tuple[str, Input]], top_k: int | None = None) -> list[Json]:
        """Classifies (reference, input) items of any mix of tasks; answers in their order."""
        body = {"items": [{"task": ref, **_input(one)} for ref, one in items], "top_k": top_k}
        return cast("list[Json]", self._json("POST", "/v1/classify", json=body)["results"])

    def fanout(self, one: Input, tasks: Sequence[str] = ("*",), top_k: int | None = None) -> list[Json]:
        """Classifies one input with many tasks; `*` is the live version of every task that takes such an input."""
        body = {**_input(one), "tasks": list(tasks), "top_k": top_k}
        return cast("list[Json]", self._json("POST", "/v1/fanout", json=body)["results"])

    def _json(self, method: str, path: str, **arguments: Any) -> Json:
        try:
            return cast(Json, self._send(method, path, **arguments).json())
        except json.JSONDecodeError:
            raise ServerUnreachable("the answer is not one of a OneBERT server") from None

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **arguments)
        except httpx.TimeoutException:
            raise ServerUnreachable("the server did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL):
            raise ServerUnreachable(f"nothing answers at {self._url}; is `onebert serve` running?") from None
        except UnicodeEncodeError:
            raise InvalidInput("a text is not valid Unicode") from None
        if answer.is_success:
            return answer
        raise _error(answer)


def _input(one: Input) -> Json:
    return {"text": one} if isinstance(one, str) else {"text": one[0], "text_pair": one[1]}


def _quoted(name: str) -> str:
    """A name or reference as one segment of a path; an empty one would be another route."""
    if not name or not name.isascii():
        raise InvalidInput("a name is made of ASCII letters and digits")
    return quote(name, safe="@")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise InvalidInput("the delta file cannot be read") from None


def _error(answer: httpx.Response) -> OneBertError:
    """The typed error of a problem; what is not a problem did not come from a OneBERT server."""
    try:
        problem = answer.json()
        code, detail = problem["code"], problem["detail"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return ServerUnreachable(f"the answer, HTTP status {answer.status_code}, is not one of a OneBERT server")
    reasons = "; ".join(f"{reason['path']}: {reason['reason']}" for reason in problem.get("errors", ()))
    kind = next((error for error in _error_types(OneBertError) if error.code == code), OneBertError)
    error = kind(reasons or detail)
    error.status, error.code, error.title = answer.status_code, code, problem["title"]
    return error


def _error_types(root: type[OneBertError]) -> Iterator[type[OneBertError]]:
    """Every class of the tree that has a code of its own."""
    for kind in root.__subclasses__():
        if "code" in vars(kind):
            yield kind
        yield from _error_types(kind)
