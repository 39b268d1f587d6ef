"""A replica on a cluster: a runtime that Ray Serve manages and that front ends call."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from starlette.types import Message

from onebert_ray import measured
from onebert_ray.calls import Calls
from onebert_ray.messages import Asked, Request, Response
from onebert_ray.scaling import Work
from onebert_server.access.keys import KeyRing
from onebert_server.answering.gateway import ShadowQuestions
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.logs import log_to_stderr
from onebert_server.remote import wire
from onebert_server.run.app import create_app
from onebert_server.run.opening import open_runtime
from onebert_server.run.progress import shown
from onebert_server.settings import Settings
from onebert_server.versions.progress import Progress

_question = wire.decoder(wire.Resolve)
_asked = wire.decoder(Asked)
_shadow_questions = wire.decoder(ShadowQuestions)
_samples = wire.decoder(wire.Samples)
_request = wire.decoder(Request)


class Replica:
    """The Ray Serve deployment class of the replicas; questions and keys are encoded `wire` messages."""

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, settings: Settings, variables: Mapping[str, str]
    ) -> None:
        os.environ.update(variables)
        log_to_stderr(settings.log_level)
        keep_freed_memory()
        self._opened = ExitStack()
        progress = Progress()
        with shown(progress):
            runtime = await asyncio.to_thread(self._opened.enter_context, open_runtime(settings, progress))
        self._runtime = runtime
        self._app = create_app(runtime)
        tracing = runtime.telemetry.tracing
        self._calls = Calls(runtime.admission, runtime.directory.position, tracing)
        self._keys = Keys(runtime.keys)
        self._work = Work(lambda: runtime.metrics.busy_seconds, lambda: runtime.engine.queue.seconds)

    async def setup(self) -> bytes:
        """The bases for front ends as an encoded `wire.Setup`."""
        return wire.encode(wire.setup_of(self._runtime.admission.splitters))

    async def keys(self, digest: bytes) -> bytes:
        """The valid keys as encoded `wire.RegistryKeys`, or empty bytes if their SHA-256 equals `digest`."""
        return self._keys.unless(digest)

    async def resolve(self, question: bytes) -> bytes:
        """Resolves an encoded `wire.Resolve`; returns an encoded `Resolution`."""
        return wire.encode(await self._calls.resolve(_question(question)))

    async def compute(self, asked: bytes) -> bytes:
        """Computes an encoded `Asked`; returns an encoded `wire.EndedMessage`."""
        return wire.encode(await self._calls.compute(_asked(asked)))

    async def shadow(self, questions: bytes) -> None:
        """Has shadows compute the questions of an encoded `ShadowQuestions`."""
        self._calls.shadow(_shadow_questions(questions))

    async def keep(self, samples: bytes) -> None:
        """Keeps the answers of an encoded `wire.Samples`."""
        sent = _samples(samples)
        self._runtime.hooks.sample(sent.kept, sent.dropped)

    async def request(self, request: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Answers an encoded `Request` whose body has come whole; returns an encoded `Response`, and its body."""
        asked, sent = _request(request), list[Message]()
        waiting: list[Message] = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            # Only the front end knows whether the client has left.
            return waiting.pop() if waiting else await asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app({**asked.scope, "headers": asked.headers}, receive, send)
        head, *parts = sent
        return wire.encode(Response(head["status"], head["headers"])), b"".join(part["body"] for part in parts)

    async def measure(self) -> measured.Part:
        return await measured.part(self._runtime.metrics)

    def check_health(self) -> None:
        self._runtime.check_health()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve; `scaling.ByWork` reads the result."""
        return {"work": self._work.per_second()}

    async def __del__(self) -> None:
        """Called by Ray Serve after the last request has finished."""
        await asyncio.to_thread(self._opened.close)


class Keys:
    """A replica's keys as encoded `wire.RegistryKeys`; encodes again only after a change."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._of: Any = None
        self._encoded = self._digest = b""

    def unless(self, digest: bytes) -> bytes:
        """Returns the encoded keys, or empty bytes if their SHA-256 equals `digest`."""
        now = self._ring.registered, self._ring.is_open
        # Comparing by identity is enough, since a ring replaces its table and never mutates it.
        if self._of is None or self._of[0] is not now[0] or self._of[1] != now[1]:
            self._of, self._encoded = now, wire.encode(wire.keys(self._ring))
            self._digest = hashlib.sha256(self._encoded).digest()
        return b"" if digest == self._digest else self._encoded
