"""The OpenAPI document: FastAPI's, and what FastAPI cannot know: media types of problems, paths without a key."""

from typing import Any

import fastapi
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.http.auth import is_open

PROBLEM = "#/components/schemas/Problem"


class DocumentedApp(FastAPI):
    """FastAPI whose document says what this server answers, and whose outermost layers are those that were added.

    FastAPI and Starlette have layers around these, for exceptions, bodies and telemetry, of which this server has its
    own; every question would pay for them.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """The layers that were added, around FastAPI's own that are inside of them."""
        stack: Any = super().build_middleware_stack()
        outermost: Any = self.user_middleware[0].cls
        while type(stack) is not outermost:
            if not hasattr(stack, "app"):
                raise ImportError(f"FastAPI {fastapi.__version__} hides the layers inside of {type(stack).__name__}")
            stack = stack.app
        layers: ASGIApp = stack
        return layers

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    _describe(path, method, operation)
        return super().openapi()


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        # A parameter that may be left out; FastAPI says so a second time, as if `null` could be sent.
        kinds = parameter["schema"].pop("anyOf", [])
        parameter["schema"] |= next((kind for kind in kinds if kind != {"type": "null"}), {})
    if is_open({"path": path, "method": method.upper()}):
        operation.pop("security", None)
    for answer in operation["responses"].values():
        content = answer.get("content", {})
        if content.get("application/json", {}).get("schema") == {"$ref": PROBLEM}:
            content["application/problem+json"] = content.pop("application/json")
