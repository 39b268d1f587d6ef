"""The replicas as a front end's backend: one call per question, repeated on another replica if one dies."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from onebert_encoder.text.tokens import Pieces
from onebert_server.access.context import Context
from onebert_server.answering.backend import Missed, Result, Wanted
from onebert_server.front_ends import questions, wire
from onebert_server.front_ends.asking import AskingBackend
from onebert_server.logs import Seldom
from onebert_store.errors import EngineFailed, ShuttingDown

# Replicas that may die in a row while they compute one question.
ATTEMPTS = 4

_reply = wire.decoder(wire.Logits | wire.Refused)
_seldom = Seldom(logging.getLogger("onebert.on_ray"))


class RayBackend(AskingBackend):
    """A backend behind a handle of the replica deployment; see Backend.

    Also raises EngineFailed after `ATTEMPTS` dead replicas in a row, and ShuttingDown without any replica.
    """

    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        super().__init__()
        # By gRPC: a call through Ray's object store takes twice the CPU time on both sides.
        self._compute = replicas.options(method_name="compute", _by_reference=False)

    async def _ask(
        self, context: Context, wanted: Wanted, inputs: Sequence[Pieces], each: bool
    ) -> list[Result | Missed]:
        """Retries when a replica dies; safe because the logits depend on the question alone."""
        for _ in range(ATTEMPTS):
            try:
                question = wire.encode(questions.question(0, context, wanted, inputs, each))
                reply = _reply(await self._answered(_task(wanted), question))
            except RayActorError:
                _seldom.warning("a replica was lost; another one takes its questions over")
                continue
            except RayError as error:
                raise EngineFailed(f"a replica failed: {type(error).__name__}") from None
            except RayServeException:  # the application is being deleted, or no replica of it could be started
                raise ShuttingDown("no replica answers") from None
            if isinstance(reply, wire.Refused):
                raise self._refusal(context, reply)
            context.observed.add(reply.seconds)
            return questions.results(reply, {facts.ref: facts for facts in reply.learned})
        raise EngineFailed("the replicas that this was asked of were lost, one after the other")

    async def _answered(self, task: str, question: bytes) -> bytes:
        asked = self._compute.options(multiplexed_model_id=task).remote(question)
        try:
            reply: bytes = await asked
        except asyncio.CancelledError:
            asked.cancel()
            raise
        return reply


def _task(wanted: Wanted) -> str:
    """The task for the router; empty if the question names several tasks or none."""
    tasks = {ref.partition("@")[0] for ref in wanted.refs or ()}
    return tasks.pop() if len(tasks) == 1 else ""
