"""The transport of a front end on a cluster: one call of a replica per message, repeated on another one if it dies."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from onebert_server.access.keys import KeyRing
from onebert_server.fairness.shares import Permits
from onebert_server.http.body import Body
from onebert_server.http.replies import PIECE_BYTES
from onebert_server.logs import Seldom
from onebert_server.remote import wire
from onebert_store.errors import EngineFailed, ShuttingDown

T = TypeVar("T")

logger = logging.getLogger("onebert.on_ray")

# Replicas that may die in a row while they answer one message.
ATTEMPTS = 4
# Requests that are repeated when a replica dies. Others may already have taken effect.
REPEATABLE = frozenset({"GET", "HEAD"})
# Bytes of bodies that a front end holds until they are answered.
MAX_HELD_BYTES = 2**29
# Seconds between two polls for keys. Together with the replica's own poll of the registry, a revoked key is refused
# everywhere within five seconds.
KEYS_EVERY = 1.0
# Seconds within which a replica answers a poll; also a PUT, which may be an upload that waits beyond its own time.
PATIENCE = 60.0

_reply = wire.decoder(wire.Logits | wire.Refused)
_keys = wire.decoder(wire.Keys)
_replies = wire.decoder(tuple[wire.Matched, wire.Response])
_seldom = Seldom(logger)


class RayTransport:
    """A transport to the replica deployment; see Transport."""

    full = False

    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        self._replicas = replicas
        # By gRPC: a call through Ray's object store takes twice the CPU time on both sides.
        self._compute = replicas.options(method_name="compute", _by_reference=False)
        self._keep = replicas.options(method_name="keep", _by_reference=False)
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

    async def ask(self, question: wire.Compute) -> wire.Logits | wire.Refused:
        """Retries when a replica dies; safe because the logits depend on the question alone."""
        asked_at = time.monotonic()

        async def ask() -> bytes:
            late = time.monotonic() - asked_at
            now = msgspec.structs.replace(question, remaining=question.remaining - late, waited=question.waited + late)
            method = self._compute.options(multiplexed_model_id=_task(question))
            reply: bytes = await _called(method, wire.encode(now))
            return reply

        try:
            reply: wire.Logits | wire.Refused = _reply(await _repeated(ask, ATTEMPTS))
            return reply
        except RayActorError:
            raise EngineFailed("the replicas that received this were lost, one after the other") from None
        except RayError as error:
            raise EngineFailed(f"a replica failed: {type(error).__name__}") from None
        except RayServeException:  # the application is being deleted, or no replica of it could be started
            raise ShuttingDown("no replica answers") from None

    async def relay(self, request: wire.Request, body: Body) -> AsyncGenerator[wire.Relayed]:
        """Relays bodies as a whole; a replica that does not answer in time counts as silent."""
        asked_at, name = time.monotonic(), request.principal.name
        # An open path needs no body, and nobody's may not keep others out.
        content = await body.read(self._held) if request.principal.scopes else b""

        async def ask() -> tuple[bytes, bytes]:
            remaining = request.remaining - (time.monotonic() - asked_at)
            now = wire.encode(msgspec.structs.replace(request, remaining=remaining))
            replies: tuple[bytes, bytes] = await _called(self._request, now, content)
            return replies

        method = request.scope["method"]
        most = max(request.remaining - (time.monotonic() - asked_at), PATIENCE if method == "PUT" else 0.0)
        with self._held.held(name, len(content)):
            async with asyncio.timeout(most):
                head, answer = await self._responded(ask, method)
        with self._held.held(name, len(answer)):
            for reply in _replies(head):
                yield reply
            for start in range(0, len(answer) or 1, PIECE_BYTES):
                end = start + PIECE_BYTES
                yield wire.Part(answer[start:end], more=end < len(answer))

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
    """Calls a replica; a cancellation ends the call there, too."""
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


def _task(question: wire.Compute) -> str:
    """The task for the router; empty if the question names several tasks or none."""
    tasks = {ref.partition("@")[0] for ref in question.refs or ()}
    return tasks.pop() if len(tasks) == 1 else ""
