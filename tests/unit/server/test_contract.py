"""The contract: a server keeps its bounds, and a client reads what newer servers send beyond them."""

from types import NoneType
from typing import get_args, get_type_hints

import msgspec
import pytest
from msgspec.structs import fields
from pydantic import TypeAdapter, ValidationError

from onebert_server.contract import administration, answers, tasks
from onebert_server.contract.administration import KeyFacts, KeyQuotas, KeysResponse
from onebert_server.contract.declared import Declared

KEY = {
    "name": "ci",
    "scopes": ["classify"],
    "tasks": ["*"],
    "default_task": None,
    "quotas": {"tasks": 3},
    "id": "3f2a9c04b1d7",
    "created_at": "2026-01-31T12:00:00Z",
    "expires_at": None,
    "revoked_at": None,
    "state": "valid",
}
STRUCTS = [
    kind
    for module in (administration, answers, tasks)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Declared)
]
WIDER = [
    {"state": "asleep"},
    {"scopes": ["classify", "upload", "promote", "admin", "train"]},
    {"tasks": ["*"] * 65},
    {"quotas": {"tasks": 0}},
    {"quotas": {"answers": 3}},
    {"more": 1},
]


@pytest.mark.parametrize("wider", WIDER, ids=str)
def test_a_client_reads_what_a_server_does_not_send(wider):
    sent = KEY | wider
    assert msgspec.json.decode(msgspec.json.encode(sent), type=KeyFacts).name == "ci"
    with pytest.raises(ValidationError):
        TypeAdapter(KeyFacts).validate_python(sent)


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_a_client_reads_null_where_a_field_is_missing(kind):
    """As in the reply of a release that does not know it yet, or no longer."""
    for field in fields(kind):
        if NoneType in get_args(get_type_hints(kind)[field.name]):
            assert field.default is None, field.name


def test_a_server_sends_a_struct_with_all_of_its_fields():
    key = msgspec.convert(KEY, KeyFacts)
    sent = TypeAdapter(KeysResponse)
    written = sent.dump_json(sent.validate_python(KeysResponse([key]), from_attributes=True))
    quotas = {"tasks": 3, "bytes": None, "requests": None, "tokens": None}
    assert msgspec.json.decode(written) == {"keys": [KEY | {"quotas": quotas}], "next": None}
    assert key.quotas == KeyQuotas(tasks=3)
