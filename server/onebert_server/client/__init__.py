"""The client library: `Client`, `AsyncClient` and the types of their results; imports no torch."""

from onebert_server.client.async_client import AsyncClient as AsyncClient
from onebert_server.client.client import Client as Client
from onebert_server.client.exchange import URL as URL
from onebert_server.client.questions import Input as Input
from onebert_server.client.tasks import Wait as Wait
from onebert_server.contract.administration import Change as Change
from onebert_server.contract.administration import KeyFacts as KeyFacts
from onebert_server.contract.administration import KeyQuotas as KeyQuotas
from onebert_server.contract.administration import MadeKey as MadeKey
from onebert_server.contract.answers import AnswerSpan as AnswerSpan
from onebert_server.contract.answers import Explanation as Explanation
from onebert_server.contract.answers import LabeledSpan as LabeledSpan
from onebert_server.contract.answers import Result as Result
from onebert_server.contract.answers import ResultError as ResultError
from onebert_server.contract.answers import TaskResult as TaskResult
from onebert_server.contract.answers import WordEffect as WordEffect
from onebert_server.contract.declared import as_dict as as_dict
from onebert_server.contract.tasks import AliasPlace as AliasPlace
from onebert_server.contract.tasks import BaseFacts as BaseFacts
from onebert_server.contract.tasks import Pushed as Pushed
from onebert_server.contract.tasks import TaskFacts as TaskFacts
from onebert_server.contract.tasks import TaskSummary as TaskSummary
from onebert_server.contract.tasks import VersionFacts as VersionFacts
from onebert_server.contract.tasks import VersionSummary as VersionSummary
from onebert_server.contract.watching import WatchedVersion as WatchedVersion
from onebert_server.contract.watching import WatchFacts as WatchFacts
