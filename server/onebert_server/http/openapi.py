"""Builds the OpenAPI document: FastAPI's, plus problem media types, the key that an operation needs, and examples."""

from collections.abc import Mapping
from copy import deepcopy
from threading import Lock
from typing import Any

import msgspec
from fastapi import FastAPI

from onebert_server.access.keys import KeyRing
from onebert_server.http.auth import is_open

PROBLEM = "#/components/schemas/Problem"
# The name of the security scheme.
KEY = "HTTPBearer"
# Tags of this server's own operations, which get examples, and stand before those of other people's clients at /docs.
OWN = ("classify", "tasks", "administration", "system")
# Example values by field name. An optional field is in an example only if it is listed here; fields without a value
# here get one by their type.
EXAMPLES: Mapping[str, Any] = msgspec.json.decode("""{
    "task": "tone", "inputs": "where is my order?", "text": "where is my order?", "name": "voice", "alias": "live",
    "key": "3f2a9c04b1d7", "id": "3f2a9c04b1d7", "aliases": {"live": 1}, "version": 1, "action": "upload",
    "digest": "sha256:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8", "principal": "key:ci",
    "label": "question", "score": 0.98, "scores": {"question": 0.98, "complaint": 0.02}, "tokens": 7,
    "truncated": false, "method": "bitfit", "task_type": "single_label", "labels": 2, "max_length": 128,
    "model_type": "bert", "dtype": "float32", "device": "cpu"
}""")
_OF_TYPE: Mapping[str, Any] = {"integer": 1, "number": 0.5, "boolean": False, "string": "tone", "object": {}}


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
                self._encoded[needs_key] = msgspec.json.encode(_amended(self.openapi(), needs_key))
            return self._encoded[needs_key]


def _amended(plain: Mapping[str, Any], needs_key: bool) -> Mapping[str, Any]:
    document = {**deepcopy(plain), "tags": [{"name": tag} for tag in OWN]}
    if needs_key:
        document["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _describe(operation)
            if needs_key and not is_open({"path": path, "method": method.upper()}):
                operation["security"] = [{KEY: []}]
            if not set(OWN).isdisjoint(operation["tags"]):
                _exemplify(operation, document["components"]["schemas"])
    return document


def _describe(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        # FastAPI documents an optional parameter as nullable, although no parameter accepts `null`.
        kinds = parameter["schema"].pop("anyOf", [])
        parameter["schema"] |= next((kind for kind in kinds if kind != {"type": "null"}), {})
    for answer in operation["responses"].values():
        content = answer.get("content", {})
        if content.get("application/json", {}).get("schema") == {"$ref": PROBLEM}:
            content["application/problem+json"] = content.pop("application/json")


def _exemplify(operation: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            parameter["example"] = _example(parameter["schema"], schemas, parameter["name"])
    answers = [response for status, response in operation["responses"].items() if status.startswith("2")]
    for holder in (operation.get("requestBody", {}), *answers):
        for content in holder.get("content", {}).values():
            if content["schema"].get("format") != "binary":
                content["example"] = _example(content["schema"], schemas)


def _fits(value: Any, properties: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and bool(value) and value.keys() <= properties.keys()


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "examples" in schema:
        return schema["examples"][0]
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        nothing = {"type": "null"} in kinds and name not in EXAMPLES
        return None if nothing else _example(kinds[0], schemas, name)
    kind = schema.get("type", "")  # a value of any type has none
    value = EXAMPLES.get(name, _OF_TYPE.get(kind))
    if fixed := schema.get("enum") or ([schema["const"]] if "const" in schema else None):
        value = fixed[0]
    elif schema.get("format") == "date-time":
        value = "2026-01-31T12:00:00Z"
    elif kind == "array":
        value = [_example(schema["items"], schemas)]
    elif "properties" in schema and not _fits(value, schema["properties"]):
        needed, fields = schema.get("required", ()), schema["properties"].items()
        value = {name: _example(field, schemas, name) for name, field in fields if name in needed or name in EXAMPLES}
    return value
