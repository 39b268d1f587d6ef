"""The transport of a front end on a cluster: one call of a replica per message, repeated on another one if it dies."""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Receive, Scope, Send

from onebert_ray.messages import Asked, Request, Resolution, Response, Rows, failed, moved, task_of
from onebert_server.access.context import Context
from onebert_server.access.keys import KeyRing
from onebert_server.answering.gateway import ShadowQuestions
from onebert_server.engine.block import ENDED
from onebert_server.fairness.shares import Permits
from onebert_server.http.body import Bodies, Body
from onebert_server.http.replies import send_whole
from onebert_server.logs import Seldom, log_failure
from onebert_server.remote import wire
from onebert_server.settings import Settings
from onebert_store.errors import EngineFailed, OneBertError, RowGone, ShuttingDown

T = TypeVar("T")

logger = logging.getLogger("onebert.on_ray")

# Replicas that may die in a row while they answer one message.
ATTEMPTS = 4
# Requests that are repeated when a replica dies. Others may already have taken effect.
REPEATABLE = frozenset({"GET", "HEAD"})
# The fields of a scope that a replica gets.
SCOPE = (
    *("type", "asgi", "http_version", "server", "client", "scheme"),
    *("method", "root_path", "path", "raw_path", "query_string"),
)
# Bytes of bodies that a front end holds until they are answered.
MAX_HELD_BYTES = 2**29
# Seconds between two polls for keys. Together with the replica's own poll of the registry, a revoked key is refused
# everywhere within five seconds.
KEYS_EVERY = 1.0
# Seconds within which a replica answers a poll; also a PUT, which may be an upload that waits beyond its own time.
PATIENCE = 60.0

_resolution = wire.decoder(Resolution)
_ended = wire.decoder(wire.EndedMessage)
_keys = wire.decoder(wire.RegistryKeys)
_response = wire.decoder(Response)
_seldom = Seldom(logger)


class RayTransport:
    """A transport to the replica deployment; see Transport."""

    full = False
    ended: Callable[[wire.EndedMessage], None]

    def __init__(self, replicas: DeploymentHandle[Any], settings: Settings) -> None:
        self._replicas, self._settings = replicas, settings
        # By gRPC: a call through Ray's object store takes twice the CPU time on both sides.
        self._resolve, self._compute, self._shadow, self._keep = (
            replicas.options(method_name=name, _by_reference=False) for name in ("resolve", "compute", "shadow", "keep")
        )
        self._rows, self._seq = Rows(), 0
        self._computing: dict[int, asyncio.Task[None]] = {}
        self._request = replicas.options(method_name="request")
        self._digest = b""
        self._held = Permits(MAX_HELD_BYTES, "the front end's buffer for bodies is full; try again soon")
        self._polling: asyncio.Task[None] | None = None

    async def listen(self, keys: KeyRing) -> None:
        await self._poll_keys(keys)
        self._polling = asyncio.create_task(self._keep_polling(keys))

    def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()

    def keep(self, samples: wire.Samples) -> None:
        self._keep.remote(wire.encode(samples))

    async def ask(self, question: wire.Resolve) -> wire.Versions | wire.Refused:
        began, method = time.monotonic(), self._resolve.options(multiplexed_model_id=task_of(question.refs or ()))

        async def call() -> Resolution:
            remaining = question.remaining - (time.monotonic() - began)
            message = wire.encode(msgspec.structs.replace(question, remaining=remaining))
            resolution: Resolution = _resolution(await _called(method, message))
            return resolution

        resolution = await _typed(call)
        if isinstance(resolution.reply, wire.Refused):
            return resolution.reply
        self._seq = max(self._seq, resolution.seq)
        return self._rows.named(resolution.reply, question.refs)

    def submit(self, block: wire.BlockMessage) -> None:
        """Sends each request on its own, since a replica that dies or is busy shall delay no other request."""
        for request, asked in self._rows.asked(block, self._seq):
            number = int(request["number"][0])
            if asked is None:
                self.ended(failed(number, RowGone("the front end has forgotten the row")))
                continue
            self._computing[number] = task = asyncio.create_task(self._answer(number, request, asked))
            task.add_done_callback(partial(self._forget, number))

    def withdraw(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if computing := self._computing.get(number):
                computing.cancel()

    def shadow(self, questions: ShadowQuestions) -> None:
        """Tells a replica of the task."""
        method = self._shadow.options(multiplexed_model_id=task_of([questions.shadows.versions[0][0]]))
        method.remote(wire.encode(questions))

    async def _answer(self, number: int, request: NDArray[Any], asked: Asked) -> None:
        method = self._compute.options(multiplexed_model_id=task_of([reference for reference, _ in asked.rows]))

        async def call() -> wire.EndedMessage:
            from_now = moved(request, ("deadline", "submitted"), -time.monotonic())
            block = msgspec.structs.replace(asked.block, requests=wire.bytes_of(from_now))
            message = wire.encode(msgspec.structs.replace(asked, block=block))
            ended: wire.EndedMessage = _ended(await _called(method, message))
            return ended

        try:
            ended = await _typed(call)
        except OneBertError as error:
            ended = failed(number, error)
        except Exception as error:
            log_failure(logger, "the answer of a replica", error)
            ended = failed(number, EngineFailed("a replica gave an answer that cannot be read"))
        times = moved(np.frombuffer(ended.requests, ENDED), ("began", "ended"), time.monotonic())
        self.ended(msgspec.structs.replace(ended, requests=wire.bytes_of(times)))

    def _forget(self, number: int, _: asyncio.Task[None]) -> None:
        del self._computing[number]

    async def forward(self, scope: Scope, receive: Receive, send: Send, deadline: float) -> None:
        """Forwards bodies as a whole; a replica that does not answer in time counts as silent."""
        principal, method = scope["state"]["principal"], scope["method"]
        # An open path needs no body, and nobody's may not keep others out.
        content = await self._content(scope, receive, deadline) if principal.scopes else b""
        request = wire.encode(Request({name: scope[name] for name in SCOPE}, scope["headers"]))

        async def ask() -> tuple[bytes, bytes]:
            replies: tuple[bytes, bytes] = await _called(self._request, request, content)
            return replies

        most = max(deadline - time.monotonic(), PATIENCE if method == "PUT" else 0.0)
        with self._held.held(principal.name, len(content)):
            async with asyncio.timeout(most):
                head, answer = await self._responded(ask, method)
        response: Response = _response(head)
        await send_whole(send, response.status, response.headers, answer, self._held, principal.name)

    async def _content(self, scope: Scope, receive: Receive, deadline: float) -> bytes:
        """Reads a body as it was sent: a replica inflates it, or refuses its encoding."""
        uploads, now = scope["method"] == "PUT", time.monotonic()
        most = self._settings.max_upload_bytes if uploads else self._settings.max_body_bytes
        context = Context(scope["state"]["principal"], math.inf if uploads else deadline, now, "a forwarded request")
        body = Body(scope, receive, context, Bodies(most))
        body.inflates = False
        return await body.read(self._held)

    async def _responded(self, ask: Callable[[], Awaitable[tuple[bytes, bytes]]], method: str) -> tuple[bytes, bytes]:
        try:
            return await _repeated(ask, ATTEMPTS if method in REPEATABLE else 1)
        except (RayError, RayServeException):
            raise ShuttingDown("no replica answers") from None

    async def _poll_keys(self, keys: KeyRing) -> None:
        changed: bytes = await self._replicas.options(method_name="keys").remote(self._digest)
        if changed:
            wire.exchange(keys, _keys(changed))
            self._digest = hashlib.sha256(changed).digest()

    async def _keep_polling(self, keys: KeyRing) -> None:
        while True:
            await asyncio.sleep(KEYS_EVERY)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._poll_keys(keys)
            # Catch everything: if this loop ended, a revoked key would stay valid forever.
            except Exception as error:
                logger.error("no replica answers with the valid keys: %s", type(error).__name__)


async def _called(method: DeploymentHandle[Any], *arguments: object) -> Any:
    response = method.remote(*arguments)
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        raise


async def _repeated(call: Callable[[], Awaitable[T]], attempts: int) -> T:
    """Awaits a call, and again while its replica dies; raises the last RayActorError."""
    while True:
        attempts -= 1
        try:
            return await call()
        except RayActorError:
            if not attempts:
                raise
            _seldom.warning("a replica was lost; another one takes its questions over")


async def _typed(call: Callable[[], Awaitable[T]]) -> T:
    """Calls a replica, and another one if it dies, which is safe: the answer depends on the message alone."""
    try:
        return await _repeated(call, ATTEMPTS)
    except RayActorError:
        raise EngineFailed("the replicas that received this were lost, one after the other") from None
    except RayError as error:
        raise EngineFailed(f"a replica failed: {type(error).__name__}") from None
    except RayServeException:  # the application is being deleted, or no replica of it could be started
        raise ShuttingDown("no replica answers") from None
