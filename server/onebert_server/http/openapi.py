"""Builds the OpenAPI document: FastAPI's, plus bodies of data routes, problem types, and the key that a path needs."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from threading import Lock
from typing import Any

import msgspec
from fastapi import FastAPI

from onebert_server.access.keys import KeyRing
from onebert_server.http.auth import is_open
from onebert_server.http.formats import DataRoute

PROBLEM = "#/components/schemas/Problem"
# The name of the security scheme.
KEY = "HTTPBearer"
# Tags of this server's own operations; the page at /docs lists them before other people's clients.
OWN = ("classify", "tasks", "administration", "system")


class DocumentedApp(FastAPI):
    """FastAPI with an amended OpenAPI document. It documents keys, which the pipeline checks."""

    def __init__(self, keys: KeyRing, **settings: Any) -> None:
        super().__init__(openapi_url=None, docs_url=None, redoc_url=None, **settings)
        self._keys = keys
        self._encoding = Lock()
        self._encoded: dict[bool, bytes] = {}

    def document(self) -> bytes:
        """The document in JSON, by whether requests need a key. Any thread may call; the first takes half a second."""
        with self._encoding:
            needs_key = not self._keys.is_open
            if needs_key not in self._encoded:
                self._encoded[needs_key] = msgspec.json.encode(self._amended(needs_key))
            return self._encoded[needs_key]

    def _amended(self, needs_key: bool) -> Mapping[str, Any]:
        document = {**deepcopy(self.openapi()), "tags": [{"name": tag} for tag in OWN]}
        _add_bodies(document, [route for route in self.routes if isinstance(route, DataRoute) and route.bodies])
        if needs_key:
            document["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                _describe(operation)
                if needs_key and not is_open({"path": path, "method": method.upper()}):
                    operation["security"] = [{KEY: []}]
        return document


def _add_bodies(document: dict[str, Any], routes: Sequence[DataRoute]) -> None:
    kinds = dict.fromkeys(body for route in routes for body in route.bodies)
    schemas, shared = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    document["components"]["schemas"] |= shared
    schema_of = dict(zip(kinds, schemas, strict=True))
    for route in routes:
        of_bodies = [schema_of[body] for body in route.bodies]
        content = {"application/json": {"schema": {"anyOf": of_bodies} if len(of_bodies) > 1 else of_bodies[0]}}
        document["paths"][route.path]["post"]["requestBody"] = {"content": content, "required": True}


def _describe(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        # FastAPI documents an optional parameter as nullable, although no parameter accepts `null`.
        kinds = parameter["schema"].pop("anyOf", [])
        parameter["schema"] |= next((kind for kind in kinds if kind != {"type": "null"}), {})
    for answer in operation["responses"].values():
        content = answer.get("content", {})
        if content.get("application/json", {}).get("schema") == {"$ref": PROBLEM}:
            content["application/problem+json"] = content.pop("application/json")
