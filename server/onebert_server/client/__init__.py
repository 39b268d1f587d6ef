"""The client library: `Client` and `AsyncClient` for one server, and the types of what they give; knows no torch."""

from onebert_server.client.async_client import AsyncClient
from onebert_server.client.client import Client
from onebert_server.client.exchange import URL
from onebert_server.client.questions import Input
from onebert_server.client.results import (
    AliasPlace,
    AnswerSpan,
    BaseFacts,
    Change,
    Explanation,
    KeyFacts,
    KeyQuotas,
    LabeledSpan,
    MadeKey,
    Pushed,
    Result,
    ResultError,
    TaskFacts,
    TaskResult,
    TaskSummary,
    VersionFacts,
    VersionSummary,
    WordEffect,
    as_dict,
)
from onebert_server.client.tasks import Wait

__all__ = [
    "URL",
    "AliasPlace",
    "AnswerSpan",
    "AsyncClient",
    "BaseFacts",
    "Change",
    "Client",
    "Explanation",
    "Input",
    "KeyFacts",
    "KeyQuotas",
    "LabeledSpan",
    "MadeKey",
    "Pushed",
    "Result",
    "ResultError",
    "TaskFacts",
    "TaskResult",
    "TaskSummary",
    "VersionFacts",
    "VersionSummary",
    "Wait",
    "WordEffect",
    "as_dict",
]
