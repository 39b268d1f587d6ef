"""Tools: their names and schemas from the tasks, and their calls."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import Field

from onebert_encoder.answering.results import Extraction, Labeling
from onebert_encoder.answering.stretches import is_bio
from onebert_server.answering.showing import Answered
from onebert_server.facades.facade import Call, JsonParts, read_whole
from onebert_server.http.problems import fault_of
from onebert_server.http.schemas.common import RequestBody
from onebert_server.http.strict import validated
from onebert_server.limits import MAX_FANOUT, MAX_TEXT
from onebert_server.texts import Text
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput, OneBertError, TooLarge
from onebert_store.registry.names import parse_ref

if TYPE_CHECKING:
    from mcp import types

# No task's name makes two of them equal, as none begins with a hyphen or an underscore.
ONE, MANY, STATUS = "classify_", "classify-many_", "status"
# Schemas do not list more labels: agents read them all.
MAX_LABELS = 256


class OneText(RequestBody):
    """The arguments of a tool for one text."""

    text: Text


class ManyTexts(RequestBody):
    """The arguments of a tool for many texts."""

    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_FANOUT)]


class Nothing(RequestBody):
    """The arguments of `status`."""


class Tools:
    """The tools of one request: what its caller may ask."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._parts = JsonParts()

    async def offered(self, _: object, params: object) -> "types.ListToolsResult":
        """Two tools for each task, and `status`."""
        from mcp import types  # noqa: PLC0415 - see `answer`
        from mcp.shared.exceptions import MCPError  # noqa: PLC0415

        tools = [_tool(STATUS, "The tasks that there are, with their live versions.", {}, _STATUS)]
        try:
            live = await self._live(_result)
        except OneBertError as error:
            raise MCPError(types.INVALID_REQUEST, self._sentence(error)) from None
        for facts, result in live:
            what = f"by the {facts.task_type} task {facts.task}"
            one, many = _object(text=_TEXT), _object(texts=_array(_TEXT) | {"minItems": 1, "maxItems": MAX_FANOUT})
            tools.append(_tool(ONE + facts.task, f"Classify one text {what}.", one, result))
            tools.append(_tool(MANY + facts.task, f"Classify texts {what}.", many, _object(results=_array(result))))
        return types.ListToolsResult(tools=tools)

    async def run(self, _: object, params: "types.CallToolRequestParams") -> "types.CallToolResult":
        """Runs a tool; a refusal is a result that says why, so that an agent reads it."""
        from mcp import types  # noqa: PLC0415 - see `answer`

        result: dict[str, Any] | None = None
        try:
            result = await self._called(params.name, params.arguments or {})
            text = json.dumps(result, ensure_ascii=False)
        except (OneBertError, RequestValidationError) as error:
            text = self._sentence(error)
        content = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, structured_content=result, is_error=result is None)

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if name == STATUS:
            validated(Nothing, arguments)
            return {"tasks": [listed for _, listed in await self._live(_listed)]}
        if name.startswith(MANY):
            return {"results": await self._classify(name.removeprefix(MANY), validated(ManyTexts, arguments).texts)}
        if not name.startswith(ONE):
            raise InvalidInput("there is no such tool")
        [result] = await self._classify(name.removeprefix(ONE), [validated(OneText, arguments).text])
        return result

    async def _classify(self, task: str, texts: list[str]) -> list[dict[str, Any]]:
        in_path = self._call.parameters.get("task")
        # The tools at `/t/tone@2/mcp` have the name of the task alone.
        named = None if in_path is not None and parse_ref(in_path).task == task else task
        refs = [self._call.task(named, "the tool")] * len(texts)
        return await read_whole(self._call, refs, texts, lambda _, answered: self._counted(_shown(answered)))

    def _sentence(self, error: OneBertError | RequestValidationError) -> str:
        return fault_of(error, self._call.context.request_id).sentence

    async def _live(self, describe: Callable[[Facts], dict[str, Any]]) -> list[tuple[Facts, dict[str, Any]]]:
        """Each task with its description; raises TooLarge if they are too large together."""
        refs = [self._call.task()] if "task" in self._call.parameters else None
        live = await self._call.edge.answerer.live(self._call.context, refs)
        try:
            return [(facts, self._counted(describe(facts))) for facts in live if facts.task_type != "span"]
        except TooLarge:
            raise TooLarge("one answer has no room for the labels of all tasks; /t/TASK/mcp is for one") from None

    def _counted(self, value: dict[str, Any]) -> dict[str, Any]:
        # Each is in the answer twice: in both tools of a task, or as values and as a text.
        self._parts.encoded([value, json.dumps(value, ensure_ascii=False)])
        return value


def _shown(answered: Answered) -> dict[str, Any]:
    answer, version = answered.read().answer, answered.facts.ref
    if isinstance(answer, Extraction):
        raise InvalidInput(f"{version} is a span task, which has no tool")
    if isinstance(answer, Labeling):
        spans = answer.words if answer.entities is None else answer.entities
        return {"spans": [vars(span) for span in spans], "version": version}
    prediction = {name: getattr(answer, name) for name in ("label", "score", "labels", "abstained")}
    return {**prediction, "version": version}


def _listed(facts: Facts) -> dict[str, Any]:
    return {"task": facts.task, "version": facts.ref, "task_type": facts.task_type, "labels": facts.labels[:MAX_LABELS]}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_STRING, _NUMBER = {"type": "string"}, {"type": "number"}
_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
_STATUS = _object(tasks=_array(_object(task=_STRING, version=_STRING, task_type=_STRING, labels=_array(_STRING))))


def _result(facts: Facts) -> dict[str, Any]:
    """The schema of a result, with the labels of the task."""
    labels = facts.labels
    if facts.per_token and is_bio(labels):
        # Entities have their labels without B- or I-.
        labels = [*dict.fromkeys(name[2:] for name in labels if name != "O")]
    label = _STRING | ({"enum": labels} if len(labels) <= MAX_LABELS else {})
    if facts.per_token:
        span = _object(start={"type": "integer"}, end={"type": "integer"}, label=label, score=_NUMBER)
        return _object(spans=_array(span), version=_STRING)
    several = {"anyOf": [_array(label), {"type": "null"}]}
    return _object(label=label, score=_NUMBER, labels=several, abstained={"type": ["boolean", "null"]}, version=_STRING)


def _tool(name: str, about: str, arguments: Mapping[str, Any], result: Mapping[str, Any]) -> "types.Tool":
    from mcp import types  # noqa: PLC0415 - see `answer`

    takes, gives = dict(arguments) or _object(), dict(result)
    hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True)
    return types.Tool(name=name, description=about, input_schema=takes, output_schema=gives, annotations=hints)
