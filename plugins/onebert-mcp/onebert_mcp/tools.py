"""The two tools, which are the same for every caller and at every time, and their calls."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from onebert_encoder.answering.results import Extraction, Labeling
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import ANSWER_IN_NUMBERS, Answered
from onebert_server.facades.facade import Call, JsonParts, read_whole
from onebert_server.http.decoding import QuestionBody, Ref, converted
from onebert_server.http.problems import fault_of
from onebert_server.http.schemas.questions import Text
from onebert_server.limits import MAX_FANOUT, MAX_TEXT
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.registry.names import parse_ref

if TYPE_CHECKING:
    from mcp import types

# Bytes of the labels in one `status`; agents read all of them.
MAX_LABEL_BYTES = 64 * 2**10
_STATUS = (
    "Lists the tasks that classify texts: the name of each, its type, its live version, and its labels (null where "
    "the labels of all tasks are too many for one answer)."
)
_CLASSIFY = (
    "Classifies texts with one task of `status`. Each result has the label with its score, of a multi_label task "
    "`labels`, of a regression the number as score, of a token task `spans`; and the version that answered."
)


class Classify(QuestionBody):
    """The arguments of `classify`; `task` may be missing where the address or the key names one."""

    texts: Annotated[list[Text], Meta(min_length=1, max_length=MAX_FANOUT)]
    task: Ref | None = None


class Nothing(QuestionBody):
    """The arguments of `status`."""


async def listed(_: object, params: object) -> "types.ListToolsResult":
    """The tools."""
    from mcp import types  # noqa: PLC0415 - see `answer`

    text = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_FANOUT}
    hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True)
    properties = {"task": {"type": "string"}, "texts": texts}
    takes = {"type": "object", "properties": properties, "required": ["texts"], "additionalProperties": False}
    nothing = {"type": "object", "additionalProperties": False}
    return types.ListToolsResult(
        tools=[
            types.Tool(name="status", description=_STATUS, input_schema=nothing, annotations=hints),
            types.Tool(name="classify", description=_CLASSIFY, input_schema=takes, annotations=hints),
        ]
    )


class Calls:
    """The calls of one request."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._parts = JsonParts()

    async def run(self, _: object, params: "types.CallToolRequestParams") -> "types.CallToolResult":
        """Runs a tool; a refusal is a result that says why, so that an agent reads it."""
        from mcp import types  # noqa: PLC0415 - see `answer`

        result: dict[str, Any] | None = None
        try:
            result = await self._called(params.name, params.arguments or {})
            text = json.dumps(result, ensure_ascii=False)
        except OneBertError as error:
            text = fault_of(error, self._call.context.request_id).sentence
        content = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, structured_content=result, is_error=result is None)

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if name == "status":
            converted(Nothing, arguments)
            return {"tasks": await self._status()}
        if name != "classify":
            raise InvalidInput("there is no such tool: there are status and classify")
        asked = converted(Classify, arguments)
        in_path = self._call.parameters.get("task")
        # `status` at `/t/tone@2/mcp` has the name of the task alone.
        named = None if in_path is not None and parse_ref(in_path).task == asked.task else asked.task
        refs = [self._call.task(named, "task")] * len(asked.texts)
        return {"results": await read_whole(self._call, refs, asked.texts, self._result)}

    async def _status(self) -> list[dict[str, Any]]:
        """The tasks, as a request of the caller's quota; in parts by principal, as other large answers are made."""
        context, answerer = self._call.context, self._call.edge.answerer
        # It asks nothing, and is counted.
        await answerer.answer(context, Wanted([]), [], lambda *_: None)
        live = await answerer.live(context, [self._call.task()] if "task" in self._call.parameters else None)
        costs = [len(facts.labels) + ANSWER_IN_NUMBERS for facts in live]
        room = MAX_LABEL_BYTES

        def tasks(part: slice) -> list[dict[str, Any]]:
            nonlocal room
            listed = []
            for facts in live[part]:
                if facts.task_type != "span":
                    labels = facts.labels if facts.label_bytes <= room else None
                    room -= facts.label_bytes if labels else 0
                    task = {"task": facts.task, "task_type": facts.task_type, "version": facts.ref, "labels": labels}
                    listed.append(task)
            return listed

        return await answerer.workers.run(context.principal.name, costs, tasks)

    def _result(self, _: int, answered: Answered) -> dict[str, Any]:
        value = _shown(answered)
        # Each is in the answer twice: as values and as a text.
        self._parts.encoded([value, json.dumps(value, ensure_ascii=False)])
        return value


def _shown(answered: Answered) -> dict[str, Any]:
    answer, version = answered.read().answer, answered.facts.ref
    if isinstance(answer, Extraction):
        raise InvalidInput(f"{version} is a span task, which no tool asks")
    if isinstance(answer, Labeling):
        spans = answer.words if answer.entities is None else answer.entities
        return {"spans": [vars(span) for span in spans], "version": version}
    prediction = {name: getattr(answer, name) for name in ("label", "score", "labels", "abstained")}
    return {**prediction, "version": version}
