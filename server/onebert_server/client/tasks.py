"""Client methods for tasks, versions and aliases."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload
from urllib.parse import urlencode

from msgspec.structs import asdict, replace

from onebert_server.client.exchange import SentQuestions, decode, quoted
from onebert_server.client.questions import Input, item_of
from onebert_server.contract.declared import as_dict
from onebert_server.contract.examples import CreatedFacts
from onebert_server.contract.gates import GateFacts
from onebert_server.contract.moves import changed
from onebert_server.contract.status import StatusResponse, TaskInForce, TaskStatus
from onebert_server.contract.tasks import (
    AliasPlace,
    BaseFacts,
    Pushed,
    ShadowAgreement,
    ShadowsResponse,
    TargetFacts,
    TaskFacts,
    TaskResponse,
    TasksResponse,
    TaskSummary,
    Uploaded,
    VerdictsResponse,
    VersionFacts,
)
from onebert_server.contract.watching import WatchFacts
from onebert_store.errors import AliasNotFound, InvalidInput, OneBertError

Wait: TypeAlias = Literal["all"]
"""`all`: wait until every live server shows the change."""


class TaskCalls(SentQuestions):
    """The methods for the server, its tasks, their versions and aliases."""

    async def ready(self) -> bool:
        """Whether the server answers and is ready."""
        try:
            await self._ask("GET", "/readyz", repeatable=False)
        except OneBertError:
            return False
        return True

    async def base(self) -> BaseFacts:
        """The base."""
        return await self._decoded(BaseFacts, "GET", "/v1/base")

    async def tasks(self) -> list[TaskSummary]:
        """All tasks, by name."""
        return [task async for page in self._pages(TasksResponse, "/v1/tasks") for task in page.tasks]

    @overload
    async def status(self) -> list[TaskStatus]: ...
    @overload
    async def status(self, task: str) -> TaskInForce: ...
    async def status(self, task: str | None = None) -> list[TaskStatus] | TaskInForce:
        """The status of all tasks by name, or of one with its aliases, thresholds and last moves."""
        if task is not None:
            return await self._decoded(TaskInForce, "GET", f"/v1/tasks/{quoted(task)}/status")
        return [status async for page in self._pages(StatusResponse, "/v1/status") for status in page.tasks]

    async def task(self, name: str) -> TaskFacts:
        """One task with a summary of each version."""
        pages = [page async for page in self._pages(TaskResponse, f"/v1/tasks/{quoted(name)}")]
        last, versions = pages[-1], [version for page in pages for version in page.versions]
        return TaskFacts(last.name, last.aliases, last.previous, versions, last.targets)

    async def version(self, name: str, version: int) -> VersionFacts:
        """One version with its manifest."""
        return await self._decoded(VersionFacts, "GET", _version_path(name, version))

    async def watch(self, name: str) -> WatchFacts:
        """The versions that a task's aliases mean: answers beside the reference, alarms."""
        return await self._decoded(WatchFacts, "GET", f"/v1/tasks/{quoted(name)}/watch")

    async def download(self, name: str, version: int) -> bytes:
        """The canonical bytes of a version's delta file."""
        return (await self._ask("GET", f"{_version_path(name, version)}/delta")).content

    async def push(self, task: str, delta: bytes | str | Path, *, live: bool = True) -> Pushed:
        """Uploads a delta file (or its content) as the next version of a task; the same content gives the same version.

        Args:
            live: whether it becomes live if it is the task's first version.

        Raises:
            InvalidDelta: the server refused the file and stored nothing.
        """
        # Repeatable, because the same content gives the same version.
        headers = {"Content-Type": "application/octet-stream"}
        try:
            content = delta if isinstance(delta, bytes) else await self._read(Path(delta))
        except OSError:
            raise InvalidInput("the delta file cannot be read") from None
        path = f"/v1/tasks/{quoted(task)}/versions" + ("" if live else "?live=false")
        answer = await self._ask("PUT", path, content=content, headers=headers)
        return Pushed(**asdict(decode(answer, Uploaded)), created=answer.status_code == 201)

    async def create_from_examples(
        self,
        task: str,
        examples: Sequence[tuple[Input, str | Sequence[str]]],
        labels: Sequence[str] | Mapping[str, str] | None = None,
    ) -> CreatedFacts:
        """Makes examples, each an input and its label, the next version of a task: the exact head, in seconds.

        Args:
            examples: with a list of labels each, also an empty one, for a multi_label task.
            labels: names, or names with descriptions; each is one more example.

        Raises:
            TrainerOff: the server was started without `--trainer`.
        """
        rows = [
            {**item_of(text), **({"label": label} if isinstance(label, str) else {"labels": [*label]})}
            for text, label in examples
        ]
        # Repeatable, because the same examples give the same version.
        body = {"examples": rows, "labels": labels and _labels(labels)}
        return await self._decoded(CreatedFacts, "POST", f"/v1/tasks/{quoted(task)}/examples", body)

    async def create_from_labels(self, task: str, labels: Sequence[str] | Mapping[str, str]) -> CreatedFacts:
        """Makes a version that gives a text the label whose name, or description, is nearest; raises TrainerOff."""
        body = {"labels": _labels(labels)}
        return await self._decoded(CreatedFacts, "POST", f"/v1/tasks/{quoted(task)}/examples", body)

    async def alias(self, task: str, alias: str) -> AliasPlace:
        """The meaning of an alias now and before."""
        return await self._decoded(AliasPlace, "GET", _alias_path(task, alias))

    async def shadows(self, task: str, alias: str) -> list[ShadowAgreement]:
        """How often the versions of an alias and its shadows answered alike, on the server that is asked."""
        return (await self._decoded(ShadowsResponse, "GET", f"{_alias_path(task, alias)}/shadows")).shadows

    async def verdicts(self, task: str, alias: str) -> VerdictsResponse:
        """How the candidates of an alias have done beside its largest share, by feedback."""
        return await self._decoded(VerdictsResponse, "GET", f"{_alias_path(task, alias)}/verdicts")

    async def move_alias(
        self,
        task: str,
        alias: str,
        to: int | TargetFacts,
        expected: int | str | None,
        wait: Wait | None = None,
        *,
        message: str | None = None,
        force: bool = False,
    ) -> AliasPlace:
        """Gives an alias a meaning if its tag (of one version: its number) is `expected` (None: if it does not exist).

        Args:
            to: a version, or a split of the requests, with shadows or without.
            wait: `all` returns once every live server shows the move.
            message: why, for the audit trail.
            force: moves past the gate; takes a message.

        Raises:
            GateFailed: a version does not pass the task's gate; the error's `report` has each check.
            AliasConflict: the alias means something else and has not moved.
            DeadlineExceeded: with `wait`: the alias has moved, but some servers did not show it in time.
        """
        # Not repeatable, like the calls below: if the reply got lost, a repetition would report a conflict.
        condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
        path = _alias_path(task, alias) + (f"?wait={wait}" if wait else "")
        body = as_dict(replace(to, tag=None)) if isinstance(to, TargetFacts) else {"version": to}
        if message is not None:
            body |= {"message": message}
        if force:
            body |= {"force": True}
        return await self._decoded(AliasPlace, "PUT", path, body, headers=condition, repeatable=False)

    async def promote(
        self, task: str, version: int, alias: str = "live", *, message: str | None = None, force: bool = False
    ) -> AliasPlace:
        """Gives an alias one version alone, whatever it means now; raises like `move_alias`."""
        return await _moved(self, task, alias, lambda _: version, message, force)

    async def rollback(self, task: str, alias: str = "live", *, message: str | None = None) -> AliasPlace:
        """Gives an alias what it meant before; raises InvalidInput if it meant nothing else, and like `move_alias`."""

        def back(place: AliasPlace | None) -> int | TargetFacts:
            if place is None or place.previous is None:
                raise InvalidInput(f"{task}@{alias} was at no version before to which it can go back")
            return place.previous_target or place.previous

        return await _moved(self, task, alias, back, message)

    async def rollout(
        self,
        task: str,
        split: Mapping[int, int] | None = None,
        *,
        sticky: str | None = None,
        shadow: Mapping[int, int] | None = None,
        alias: str = "live",
        message: str | None = None,
        force: bool = False,
    ) -> AliasPlace:
        """Splits an alias between versions, or gives it shadows, by their percentages; raises like `move_alias`.

        Args:
            split, shadow: None leaves what is there; an empty one ends it.
            sticky: what chooses the version: `principal`, or `header:NAME`; empty: chance.
        """

        def parts(place: AliasPlace | None) -> TargetFacts:
            if place is None:
                raise AliasNotFound(f"{task} has no alias {alias}")
            return changed(place, split, sticky, shadow)

        return await _moved(self, task, alias, parts, message, force)

    async def delete_alias(self, task: str, alias: str, expected: int | str, *, message: str | None = None) -> None:
        """Deletes an alias if its tag is still `expected`; else raises AliasConflict. `message` is why."""
        condition = {"If-Match": f'"{expected}"'}
        await self._ask("DELETE", _because(_alias_path(task, alias), message), headers=condition, repeatable=False)

    async def gate(self, task: str) -> GateFacts:
        """The gate of a task; raises GateNotFound if it has none."""
        return await self._decoded(GateFacts, "GET", _gate_path(task))

    async def set_gate(self, task: str, rules: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> GateFacts:
        """Sets the gate of a task in place of the one before.

        Args:
            rules: as in the file of `onebert apply`.
            rows: the pinned rows, which `min`, `max` and `slices` are about; the server keeps them.
        """
        return await self._decoded(GateFacts, "PUT", _gate_path(task), {"rules": rules, "rows": list(rows)})

    async def delete_gate(self, task: str) -> None:
        """Deletes the gate of a task with its rows."""
        await self._ask("DELETE", _gate_path(task), repeatable=False)

    async def delete_task(self, task: str, *, message: str | None = None) -> None:
        """Deletes a task with all of its aliases and versions; `message` is why, for the audit trail."""
        await self._ask("DELETE", _because(f"/v1/tasks/{quoted(task)}", message), repeatable=False)

    async def delete_version(self, task: str, version: int, *, message: str | None = None) -> None:
        """Deletes a version; raises VersionInUse if an alias points at it. `message` is why."""
        await self._ask("DELETE", _because(_version_path(task, version), message), repeatable=False)


def _version_path(name: str, number: int) -> str:
    return f"/v1/tasks/{quoted(name)}/versions/{number}"


def _because(path: str, message: str | None) -> str:
    return path if message is None else f"{path}?{urlencode({'message': message})}"


def _gate_path(name: str) -> str:
    return f"/v1/tasks/{quoted(name)}/gate"


def _labels(labels: Sequence[str] | Mapping[str, str]) -> Sequence[str] | Mapping[str, str]:
    return {**labels} if isinstance(labels, Mapping) else [*labels]


def _alias_path(name: str, alias: str) -> str:
    return f"/v1/tasks/{quoted(name)}/aliases/{quoted(alias)}"


async def _moved(
    client: Any,
    task: str,
    alias: str,
    to: Callable[[AliasPlace | None], int | TargetFacts],
    message: str | None,
    force: bool = False,
) -> AliasPlace:
    """Moves an alias from where it is; the methods of `TaskCalls` serve both clients."""
    try:
        place: AliasPlace | None = await TaskCalls.alias(client, task, alias)
    except AliasNotFound:
        place = None
    tag = None if place is None else place.target.tag if place.target else place.version
    return await TaskCalls.move_alias(client, task, alias, to(place), tag, message=message, force=force)
