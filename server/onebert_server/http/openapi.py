"""The OpenAPI document: FastAPI's, and what FastAPI cannot know: media types of problems, paths without a key."""

from typing import Any

from fastapi import FastAPI

from onebert_server.http.auth import is_open

PROBLEM = "#/components/schemas/Problem"


class DocumentedApp(FastAPI):
    """FastAPI whose document says what this server answers."""

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
