"""The client of the native HTTP interface that waits for its answers; calls.py says what it does."""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast, overload

import httpx

from onebert_server.client import administration, calls
from onebert_server.client.calls import Input, Item, ManyOptions, OneOptions, Wait
from onebert_server.client.exchange import (
    TIMEOUT,
    URL,
    LastSeen,
    Outcome,
    Pause,
    Send,
    Steps,
    arguments,
    checked,
    headers_of,
)
from onebert_server.client.results import (
    UNLIMITED,
    AliasPlace,
    BaseFacts,
    Change,
    KeyFacts,
    KeyQuotas,
    MadeKey,
    Pushed,
    TaskFacts,
    TaskResult,
    TaskSummary,
    VersionFacts,
)
from onebert_store.errors import InvalidInput

T = TypeVar("T")


class Client:
    """Speaks to one server; every refusal comes back as the OneBertError of its code.

    A request that the server refuses for now (429, 503 with `Retry-After`) is sent again when the server says so, as
    often as the timeout allows; moves of aliases and deletions are not. More inputs than one request takes go out in
    several, all answered by the version that answered the first. What this client has changed is known to whichever of
    several servers answers its later requests. Threads may share a client.

    Args:
        url: the server's address.
        api_key: sent as a bearer token when given.
        timeout: seconds for one request with its repetitions; the server is told and drops what is late. The bound is
            on each wait for the network: only a server whose answer comes in drops makes a call take longer.

    Raises:
        InvalidInput: the address or the key cannot be one.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        try:
            self._http = httpx.Client(base_url=checked(url), headers=headers_of(api_key))
        except (httpx.InvalidURL, UnicodeEncodeError):
            raise InvalidInput("the URL or the API key is not valid") from None
        self._timeout = timeout
        self._seen = LastSeen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the server answers and is ready."""
        return self._run(calls.ready(self._timeout))

    def base(self) -> BaseFacts:
        """The base, and the shapes that a delta for it may touch."""
        return self._run(calls.base(self._timeout))

    def tasks(self) -> list[TaskSummary]:
        """All tasks, by name."""
        return self._run(calls.tasks(self._timeout))

    def task(self, name: str) -> TaskFacts:
        """One task with a summary of each version."""
        return self._run(calls.task(name, self._timeout))

    def version(self, name: str, version: int) -> VersionFacts:
        """One version with its manifest."""
        return self._run(calls.version(name, version, self._timeout))

    def download(self, name: str, version: int) -> bytes:
        """The canonical bytes of a version's delta file."""
        return self._run(calls.download(name, version, self._timeout))

    def push(self, task: str, delta: bytes | Path) -> Pushed:
        """Uploads a delta file as the next version of a task; equal content is an equal version.

        Args:
            task: its name.
            delta: the file or its content.

        Raises:
            InvalidDelta: the file is refused, and nothing of it is stored.
        """
        return self._run(calls.push(task, calls.content_of(delta), self._timeout))

    def move_alias(
        self, task: str, alias: str, version: int, expected: int | None, wait: Wait | None = None
    ) -> AliasPlace:
        """Points an alias at a version, newer or older, if it still points at `expected` (None: if it does not exist).

        Args:
            task: whose alias.
            alias: what to move.
            version: where to.
            expected: where the alias is now.
            wait: `all`: return when every live server shows the move, so that nobody finds the alias where it was.

        Raises:
            AliasConflict: it points elsewhere, and stays there.
            DeadlineExceeded: with `wait`: it is moved, and some servers do not show that in time.
        """
        return self._run(calls.move_alias(task, alias, version, expected, wait, self._timeout))

    def delete_alias(self, task: str, alias: str, expected: int) -> None:
        """Deletes an alias if it still points at `expected`.

        Raises:
            AliasConflict: it points elsewhere, and stays.
        """
        self._run(calls.delete_alias(task, alias, expected, self._timeout))

    def delete_task(self, task: str) -> None:
        """Deletes a task with all of its aliases and versions."""
        self._run(calls.delete_task(task, self._timeout))

    def rename_task(self, task: str, name: str) -> None:
        """Gives a task another name; its versions keep their numbers, and its aliases stay where they are.

        Raises:
            TaskExists: there are versions of that name, or were; a task can have its last name back.
        """
        self._run(calls.rename_task(task, name, self._timeout))

    def delete_version(self, task: str, version: int) -> None:
        """Deletes a version.

        Raises:
            VersionInUse: an alias points at it.
        """
        self._run(calls.delete_version(task, version, self._timeout))

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        tasks: Sequence[str],
        default_task: str | None = None,
        quotas: KeyQuotas = UNLIMITED,
        expires_at: datetime | None = None,
    ) -> MadeKey:
        """Makes a key, in force at once on the server that answers and within five seconds on the others.

        Args:
            name: whose it is; keys of one name are one principal.
            scopes: what it is for, of `classify`, `upload`, `promote` and `admin`.
            tasks: for which tasks, as globs.
            default_task: what a request means that names no task.
            quotas: how much it allows.
            expires_at: until when, with its time zone; None is for ever.

        Returns:
            What was made, with the key itself, which nothing else will ever give.

        Raises:
            InvalidInput: it breaks a rule.
            Forbidden: this client's own key is not for administering all tasks; so for all methods about keys.
        """
        return self._run(
            administration.create_key(name, scopes, tasks, default_task, quotas, expires_at, self._timeout)
        )

    def keys(self) -> list[KeyFacts]:
        """Every key that was made, the oldest first; none of them itself."""
        return self._run(administration.keys(self._timeout))

    def revoke_key(self, key_id: str) -> None:
        """Revokes a key for good: at once on the server that answers, within five seconds on the others.

        Raises:
            KeyNotFound: there is no key of this id.
        """
        self._run(administration.revoke_key(key_id, self._timeout))

    def audit(
        self,
        after: int = 0,
        most: int = 1000,
        task: str | None = None,
        principal: str | None = None,
        since: datetime | None = None,
    ) -> list[Change]:
        """What was changed, the oldest change first: as many changes as are asked for, and fewer only at the end.

        Args:
            after: the `seq` of the last change of the page before.
            most: how many, at most 1000.
            task: changes of this task alone.
            principal: changes that this principal made, as `key:ci`.
            since: changes from then on, with its time zone.

        Raises:
            Forbidden: this client's own key is not for administering all tasks.
        """
        return self._run(administration.audit(after, most, task, principal, since, self._timeout))

    # A text or a pair is a sequence of texts, too, and Python has no type for the sequences that are neither: the
    # signatures overlap, and the first that fits counts, as it does when the method runs.
    @overload
    def classify(  # type: ignore[overload-overlap]
        self, ref: str, inputs: Input, top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> TaskResult: ...
    @overload
    def classify(
        self, ref: str, inputs: Sequence[Input], top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> list[TaskResult]: ...
    def classify(
        self, ref: str, inputs: Input | Sequence[Input], top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> Any:
        """Classifies one input, or any number of them, with one version of a task.

        Args:
            ref: `name`, `name@3` or `name@alias`, of any task type.
            inputs: one, or a sequence of them; a tuple is a pair of texts, of a span task (question, context).
            top_k: how many scores to give, best first (None: all); of a span task, how many answers (None: one, at
                most 20).
            **options: what is asked in place of what the task says; see OneOptions.

        Returns:
            The answer; of a sequence a list of answers in its order.
        """
        return self._run(calls.classify(ref, inputs, top_k, self._timeout, options))

    def classify_items(
        self, items: Sequence[Item], top_k: int | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskResult]:
        """Classifies (reference, input) items of any mix of tasks; answers in their order."""
        return self._run(calls.classify_items(items, top_k, self._timeout, options))

    def fanout(
        self, one: Input, tasks: Sequence[str] = ("*",), top_k: int | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskResult]:
        """Classifies one input with up to 1024 tasks; `*`: the live version of every task that takes such an input."""
        return self._run(calls.fanout(one, tasks, top_k, self._timeout, options))

    def _run(self, steps: Steps[T]) -> T:
        outcome: Outcome = None
        try:
            while True:
                outcome = self._take(steps.send(outcome))
        except StopIteration as done:
            return cast(T, done.value)

    def _take(self, step: Send | Pause) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            answer = self._http.request(**arguments(step, self._seen))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
        self._seen.note(answer)
        return answer
