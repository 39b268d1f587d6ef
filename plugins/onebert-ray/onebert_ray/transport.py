"""The transport of a front end on a cluster: one call of a replica per message, repeated on another one if it dies."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from onebert_server.access.keys import KeyRing
from onebert_server.logs import Seldom
from onebert_server.remote import wire
from onebert_store.errors import EngineFailed, ShuttingDown

logger = logging.getLogger("onebert.on_ray")

# Replicas that may die in a row while they answer one message.
ATTEMPTS = 4
# Requests that are repeated when a replica dies. Others may already have taken effect.
REPEATABLE = frozenset({"GET", "HEAD"})
# Seconds between two polls for keys. Together with the replica's own poll of the registry, a revoked key is refused
# everywhere within five seconds.
KEYS_EVERY = 1.0

_reply = wire.decoder(wire.Logits | wire.Refused)
_keys = wire.decoder(wire.Keys)
_response = wire.decoder(wire.Response)
_seldom = Seldom(logger)


class RayTransport:
    """A transport to the replica deployment; see Transport. `patience` for a look at the keys is in seconds."""

    full = False

    def __init__(self, replicas: DeploymentHandle[Any], patience: float) -> None:
        self._replicas = replicas
        # By gRPC: a call through Ray's object store takes twice the CPU time on both sides.
        self._compute = replicas.options(method_name="compute", _by_reference=False)
        self._request = replicas.options(method_name="request")
        self._patience = patience
        self._digest = b""
        self._looking: asyncio.Task[None] | None = None

    async def listen(self, keys: KeyRing) -> None:
        await self._look(keys)
        self._looking = asyncio.create_task(self._keep_looking(keys))

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def ask(self, question: wire.Compute) -> wire.Logits | wire.Refused:
        """Retries when a replica dies; safe because the logits depend on the question alone."""
        asked = wire.encode(question)
        try:
            reply: wire.Logits | wire.Refused = _reply(
                await _repeated(lambda: self._answered(_task(question), asked), ATTEMPTS)
            )
            return reply
        except RayActorError:
            raise EngineFailed("the replicas that this was asked of were lost, one after the other") from None
        except RayError as error:
            raise EngineFailed(f"a replica failed: {type(error).__name__}") from None
        except RayServeException:  # the application is being deleted, or no replica of it could be started
            raise ShuttingDown("no replica answers") from None

    async def relay(self, request: wire.Request, patience: float) -> wire.Response:
        asked = wire.encode(request)
        attempts = ATTEMPTS if request.scope["method"] in REPEATABLE else 1
        try:
            async with asyncio.timeout(patience):
                response: wire.Response = _response(await _repeated(lambda: self._request.remote(asked), attempts))
                return response
        except (TimeoutError, RayError, RayServeException):
            raise ShuttingDown("no replica answers") from None

    async def _answered(self, task: str, question: bytes) -> bytes:
        asked = self._compute.options(multiplexed_model_id=task).remote(question)
        try:
            reply: bytes = await asked
        except asyncio.CancelledError:
            asked.cancel()
            raise
        return reply

    async def _look(self, keys: KeyRing) -> None:
        changed: bytes = await self._replicas.options(method_name="keys").remote(self._digest)
        if changed:
            wire.exchange(keys, _keys(changed))
            self._digest = hashlib.sha256(changed).digest()

    async def _keep_looking(self, keys: KeyRing) -> None:
        while True:
            await asyncio.sleep(KEYS_EVERY)
            try:
                async with asyncio.timeout(self._patience):
                    await self._look(keys)
            # Catch everything: if this loop ended, a revoked key would stay valid forever.
            except Exception as error:
                logger.error("no replica tells which keys are taken: %s", type(error).__name__)


async def _repeated(call: Callable[[], Awaitable[bytes]], attempts: int) -> bytes:
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
