"""A front end as the process with the engine sees it: takes its messages, and sends it what has ended."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.gateway import Resolved, Wanted
from onebert_server.engine.block import ENDED, Block, Ended, validate
from onebert_server.logs import log_failure
from onebert_server.remote import wire
from onebert_store.errors import EngineFailed, OneBertError

if TYPE_CHECKING:
    # Needs torch, which a front end that imports a transport's module does without.
    from onebert_server.answering.admission import Admission
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.remote_edge")

# Blocks whose requests may be refused yet: the blocks of one turn of the event loop, or some more.
LATEST = 16


class RemoteEdge:
    """An edge in another process; `send` takes each message to it, from the event loop."""

    def __init__(
        self, admission: "Admission", send: Callable[[wire.EndedMessage], None], tracing: "Tracing | None" = None
    ) -> None:
        self._admission, self._hosts = admission, admission.hosts
        self._entry = admission.entry(self._answered)
        self._send = send
        self._tracing = tracing
        # Whose the latest requests were: one that is refused has come with them.
        self._latest: deque[tuple[NDArray[Any], Sequence[Principal]]] = deque(maxlen=LATEST)

    async def reply_to(self, question: wire.Resolve) -> wire.Versions | wire.Refused:
        """Answers a question of the front end, with a `Refused` for any exception."""
        wanted = Wanted(question.refs, question.pair, question.asked, question.only_facts, question.partial)
        try:
            versions = await self._admission.resolve(_context(question), wanted)
        except OneBertError as error:
            return wire.Refused(wire.why_of(error))
        except Exception as error:
            log_failure(logger, "a question of a front end", error)
            return wire.Refused(wire.why_of(OneBertError("the server failed to answer; its log says where")))
        resolved = [version for version in versions if isinstance(version, Resolved)]
        errors = {place: error for place, error in enumerate(versions) if isinstance(error, OneBertError)}
        missed = {place: wire.why_of(error) for place, error in errors.items()}
        facts = {version.facts.identity: version.facts for version in resolved}
        return wire.Versions([_found(version) for version in resolved], [*facts.values()], missed)

    def take(self, message: wire.ToGateway) -> None:
        """Takes a message; raises for a block whose requests cannot be read."""
        match message:
            case wire.BlockMessage():
                self._submit(message.block(self._tracing))
            case wire.Withdraw(numbers):
                self._entry.withdraw(numbers)
            case wire.Shadowed(questions):
                self._admission.shadow(questions)

    def close(self) -> None:
        """Withdraws everything: the front end is gone."""
        self._entry.close()

    def _submit(self, block: Block) -> None:
        numbers = block.requests["number"]
        try:
            # Before anything reads it: a damaged block shall never read another's ids or row.
            validate(block, self._hosts)
            self._latest.append((block.requests.copy(), block.principals))
            self._entry.submit(block)
        except Exception as error:
            log_failure(logger, "a block of a front end", error)
            self._entry.withdraw(numbers.tolist())
            self._fail(numbers)

    def _answered(self, ended: Ended) -> None:
        try:
            full = self._full(ended.requests["number"][ended.requests["error"] >= 0]) if ended.errors else []
            message = wire.EndedMessage.of(ended, self._tracing, full)
        except Exception as error:
            log_failure(logger, "the answers of a front end", error)
            self._fail(ended.requests["number"])
        else:
            self._send(message)

    def _fail(self, numbers: NDArray[np.int64]) -> None:
        """Ends requests: nobody shall wait for them until their deadline."""
        requests = np.zeros(len(numbers), ENDED)
        requests["number"] = numbers
        error = EngineFailed("the process with the engine could not take or answer it; its log says where")
        self._send(wire.EndedMessage.of(Ended(requests, np.empty(0, np.int32), np.empty(0, np.float32), [error]), None))

    def _full(self, refused: NDArray[Any]) -> list[tuple[Principal, OneBertError]]:
        """Returns those principals of refused requests whose every request would be refused now."""
        callers = dict[int, Principal]()
        for requests, principals in self._latest:
            indexes = requests["principal"][np.isin(requests["number"], refused)]
            callers |= {id(principals[index]): principals[index] for index in np.unique(indexes).tolist()}
        full, now = [], time.monotonic()
        for principal in callers.values():
            try:
                self._admission.refuse_early(Context(principal, now, now, "a refused request"))
            except OneBertError as error:
                full.append((principal, error))
        return full


def _context(question: wire.Resolve) -> Context:
    now = time.monotonic()
    lacking: list[str] = []

    def header(name: str) -> bytes | None:
        if name not in question.headers:
            lacking.append(name)
        return question.headers.get(name)

    deadline = now + question.remaining
    what = question.request_id, question.min_seq
    return Context(question.principal, deadline, now, *what, header=header, lacking=lacking)


def _found(resolved: Resolved) -> wire.Found:
    return wire.Found(resolved.facts.identity, *resolved[1:])
