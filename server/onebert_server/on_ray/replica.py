"""A replica on a cluster: a runtime that Ray Serve manages and that front ends call."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack

import msgspec
from starlette.types import Scope

from onebert_server.app import create_app
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.front_ends import questions, wire
from onebert_server.logs import log_to_stderr
from onebert_server.on_ray import measured, messages
from onebert_server.on_ray.scaling import Work
from onebert_server.progress import Progress, shown
from onebert_server.runtime import open_runtime
from onebert_server.settings import Settings

_question = msgspec.msgpack.Decoder(wire.Compute).decode


class Replica:
    """The Ray Serve deployment class of the replicas; questions and keys are encoded `wire` messages."""

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, settings: Settings, variables: Mapping[str, str]
    ) -> None:
        os.environ.update(variables)
        log_to_stderr(settings.log_level)
        keep_freed_memory()
        self._opened = ExitStack()
        # The front ends write the access log.
        settings = settings.model_copy(update={"access_log": "off"})
        progress = Progress()
        with shown(progress):
            runtime = await asyncio.to_thread(self._opened.enter_context, open_runtime(settings, progress))
        self._runtime = runtime
        self._app = create_app(runtime)
        self._keys = messages.Keys(runtime.keys)
        self._work = Work(lambda: runtime.metrics.busy_seconds, lambda: runtime.engine.queue.seconds)

    async def setup(self) -> tuple[str, int]:
        """The base's tokenizer as `Tokenizer.dumps`, and its maximum length in tokens."""
        base = self._runtime.base
        return base.tokenizer.dumps(), base.spec.max_length

    async def keys(self, digest: bytes) -> bytes:
        """The valid keys as encoded `wire.Keys`, or empty bytes if their SHA-256 equals `digest`."""
        return self._keys.unless(digest)

    async def compute(self, asked: bytes) -> bytes:
        """Computes an encoded `wire.Compute`; a `wire.Logits` reply has the facts of all its versions."""
        return wire.encode(await questions.answered(self._runtime.admission, _question(asked)))

    async def request(self, scope: Scope, body: bytes) -> messages.Answer:
        return await messages.answer(self._app, scope, body)

    async def measure(self) -> measured.Part:
        return await measured.part(self._runtime.metrics)

    def check_health(self) -> None:
        self._runtime.check_health()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve; `scaling.ByWork` reads the result."""
        return {"work": self._work.a_second()}

    async def __del__(self) -> None:
        """Called by Ray Serve after the last request has finished."""
        await asyncio.to_thread(self._opened.close)
