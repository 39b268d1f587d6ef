"""The façade that plugs in: `/mcp`, where the SDK's own server answers each request without a session."""

import asyncio
import json
import logging
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

import msgspec

from onebert_mcp.tools import Calls, listed
from onebert_server.facades.facade import Call, Facade, Question
from onebert_server.http.decoding import QuestionBody
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault


class Message(QuestionBody):
    """A JSON-RPC message: a request with an id, a notification without."""

    jsonrpc: Literal["2.0"]
    method: str
    # The SDK takes a message with null as a notification, which has no answer.
    id: int | str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] | None = None


async def answer(call: Call[Message]) -> Reply:
    """Answers a message of a client of the Model Context Protocol."""
    # The SDK takes a second to import: no server waits for that at its start, and no other request meanwhile.
    await asyncio.to_thread(import_module, "mcp.server.streamable_http_manager")
    from mcp.server.lowlevel import Server  # noqa: PLC0415
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415

    # It logs several lines for each request, which the access log has.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    sent = list[Any]()
    server = Server("onebert", version=version("onebert"), on_list_tools=listed, on_call_tool=Calls(call).run)
    sessions = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
    body = json.dumps(msgspec.to_builtins(call.body)).encode()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        # The pipeline sees a client that leaves, and cancels.
        return next(messages, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": [*call.headers]}
    async with sessions.run():
        await sessions.handle_request(scope, receive, send)
    start, *parts = sent
    fields = {name.decode(): value.decode() for name, value in start["headers"]}
    media_type = fields.pop("content-type", "application/json")
    fields.pop("content-length", None)
    return Reply(b"".join(part.get("body", b"") for part in parts), fields, media_type, start["status"])


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of JSON-RPC, for what is refused before the SDK reads it."""
    code = -32600 if fault.status < 500 else -32603
    return fault.status, {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": fault.sentence}}


_ASKED = Question("/mcp", Message, answer, dict[str, Any], unanswered="A notification, which has no answer.")
FACADE = Facade("MCP", worded, [_ASKED])
