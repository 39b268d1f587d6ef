"""The client library: `Client` and `AsyncClient` for one server, and the types of what they give; knows no torch."""

from onebert_server.client.calls import Input
from onebert_server.client.client import URL, AsyncClient, Client
from onebert_server.client.results import (
    AliasPlace,
    AnswerSpan,
    BaseFacts,
    LabeledSpan,
    Pushed,
    Result,
    ResultError,
    TaskFacts,
    TaskResult,
    TaskSummary,
    VersionFacts,
    VersionSummary,
    as_dict,
)

__all__ = [
    "URL",
    "AliasPlace",
    "AnswerSpan",
    "AsyncClient",
    "BaseFacts",
    "Client",
    "Input",
    "LabeledSpan",
    "Pushed",
    "Result",
    "ResultError",
    "TaskFacts",
    "TaskResult",
    "TaskSummary",
    "VersionFacts",
    "VersionSummary",
    "as_dict",
]
