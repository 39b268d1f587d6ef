"""The base, tasks, versions and aliases."""

from datetime import datetime
from typing import Annotated, Any

from onebert_server.contract.declared import Declared, Rule


class OneBase(Declared, frozen=True, kw_only=True):
    """A base, and the shapes that a delta for it may touch."""

    name: str
    digest: str
    model_type: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_length: int
    num_parameters: int
    poolings: Annotated[list[str], Rule("those of a text's tokens; `none` is always possible besides")]
    dtype: Annotated[str, Rule("what the encoder computes in")]
    device: str
    kernels: Annotated[
        str,
        Rule(
            "what computes between the matrix products: native, with the instructions that a wheel's library is "
            "compiled for, plain, or gpu and what it chose"
        ),
    ]
    batch_invariant: Annotated[bool, Rule("whether a text gets the same bits alone and in every batch")]
    parameters: dict[str, list[int]]
    modules: dict[str, list[int]]
    symbols: dict[str, str]


class BaseFacts(OneBase, frozen=True, kw_only=True):
    """The base, and the shapes that a delta for it may touch; of several bases the first one."""

    _document = "BaseResponse"

    bases: Annotated[list[OneBase] | None, Rule("if the server has several: each of them, the first one, too")] = None


class Uploaded(Declared, frozen=True, kw_only=True):
    """The version that holds an uploaded delta."""

    task: str
    version: int
    digest: str


class Pushed(Uploaded, frozen=True, kw_only=True):
    """The version of an uploaded delta; `created`, from the reply's status, is False if the task had the content."""

    created: bool = True


Previous = Annotated[int, Rule("where the alias pointed before; that version may be deleted by now")]


class AliasPlace(Declared, frozen=True):
    """Where an alias points."""

    _document = "AliasResponse"
    _always = ("previous",)

    task: str
    alias: str
    version: int
    previous: Previous | None = None


class TaskSummary(Declared, frozen=True):
    """A task, its version numbers, where its aliases point, and where moved ones pointed before."""

    name: str
    aliases: dict[str, int]
    previous: dict[str, Previous]
    versions: list[int]


class TasksResponse(Declared, frozen=True):
    """A page of the tasks, by name."""

    _always = ("next",)

    tasks: list[TaskSummary]
    next: Annotated[str | None, Rule("what `after` must be for the next page; null on the last one")] = None


class VersionSummary(Declared, frozen=True, kw_only=True):
    """One version of a task, and how far it is in this server's memory."""

    _always = ("method", "task_type", "labels")

    version: int
    digest: str
    status: Annotated[
        str,
        Rule(
            "resident answers at once, unavailable not at all; others are loaded when asked for",
            one_of=("registered", "loading", "resident", "evicted", "unavailable"),
        ),
    ]
    reason: Annotated[str | None, Rule("why it is unavailable, or what is wrong with its stored file")] = None
    retry_in: Annotated[float | None, Rule("seconds until an unavailable one is tried again")] = None
    size: Annotated[int, Rule("bytes of the delta file")]
    created_at: datetime
    method: Annotated[str | None, Rule("this and what follows: null where no manifest can be read")] = None
    task_type: str | None = None
    labels: int | None = None


class VersionFacts(VersionSummary, frozen=True, kw_only=True):
    """One version with its manifest."""

    task: str
    manifest: dict[str, Any]


class TaskFacts(Declared, frozen=True):
    """A task with a summary of each version, oldest first."""

    name: str
    aliases: dict[str, int]
    previous: dict[str, Previous]
    versions: list[VersionSummary]


class TaskResponse(TaskFacts, frozen=True):
    """A task, its aliases as in the list of tasks, and a page of its versions, oldest first."""

    _always = ("next",)

    next: Annotated[int | None, Rule("what `after` must be for the next page; null on the last one")] = None
