"""A replica on a cluster: a runtime that Ray Serve starts, watches and stops, and that the front ends ask."""

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
    """Its methods are what Ray Serve and front ends call; questions and keys are bytes in the form of `wire`.

    Args:
        settings: of the runtime.
        variables: of OpenTelemetry, for the environment of this process.
    """

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, settings: Settings, variables: Mapping[str, str]
    ) -> None:
        os.environ.update(variables)
        log_to_stderr(settings.log_level)
        keep_freed_memory()
        self._opened = ExitStack()
        # Each request comes through a front end, whose access log has it.
        settings = settings.model_copy(update={"access_log": "off"})
        progress = Progress()
        with shown(progress):
            runtime = await asyncio.to_thread(self._opened.enter_context, open_runtime(settings, progress))
        self._runtime = runtime
        self._app = create_app(runtime)
        self._keys = messages.Keys(runtime.keys)
        self._work = Work(lambda: runtime.metrics.busy_seconds, lambda: runtime.engine.waiting_seconds)

    async def setup(self) -> tuple[str, int]:
        """The base's tokenizer, of `Tokenizer.dumps`, and the tokens of the longest sequence that it takes."""
        base = self._runtime.base
        return base.tokenizer.dumps(), base.spec.max_length

    async def keys(self, digest: bytes) -> bytes:
        """The keys that are taken now, a `wire.Keys`; nothing where the SHA-256 of that is this one."""
        return self._keys.unless(digest)

    async def compute(self, asked: bytes) -> bytes:
        """Answers a `wire.Compute` with `wire.Logits`, which say how they are read, or `wire.Refused`."""
        return wire.encode(await questions.answered(self._runtime.admission, _question(asked)))

    async def request(self, scope: Scope, body: bytes) -> messages.Answer:
        """Has the app answer a whole request; `scope` is what of its ASGI scope a front end sends."""
        return await messages.answer(self._app, scope, body)

    async def measure(self) -> measured.Part:
        """The metrics of this replica."""
        return await measured.part(self._runtime.metrics)

    def check_health(self) -> None:
        """Asked by Ray Serve, which starts another replica in place of one that raises.

        Raises:
            Unhealthy: see `Runtime.check_health`.
        """
        self._runtime.check_health()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Asked by Ray Serve for `scaling.ByWork`."""
        return {"work": self._work.a_second()}

    async def __del__(self) -> None:
        """Called by Ray Serve when everything that was asked is answered."""
        await asyncio.to_thread(self._opened.close)
