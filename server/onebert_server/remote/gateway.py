"""A front end's gateway: blocks and what has ended cross as one message each, a reference once; and kept answers."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.gateway import Resolved, ShadowQuestions, Wanted
from onebert_server.engine.block import Block, Ended
from onebert_server.observed import Kept
from onebert_server.remote import wire
from onebert_server.remote.transport import Transport
from onebert_store.errors import HeaderNeeded, OneBertError, QueueFull

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

# Seconds for which a front end repeats a refusal by itself. Far shorter than the queue needs to drain, so that the
# engine never idles. MAX_FULL bounds the principals with a stored refusal.
FULL_SECONDS = 0.05
MAX_FULL = 1024
# Names of headers that are sent with each reference, the latest ones; a question that lacks others is asked again with
# all of its own. A third time is for an alias that moved in between.
MAX_HEADERS = 64
MAX_TRIES = 3


class RemoteGateway:
    """A gateway behind a transport; see Gateway.

    It repeats the other process's refusal of a principal for `FULL_SECONDS` without asking again. It sends the headers
    that aliases choose by, whose names it learns from the first question that lacked one.
    """

    answered: Callable[[Ended], None]

    def __init__(self, transport: Transport, tracing: "Tracing | None" = None) -> None:
        self._transport = transport
        self._tracing = tracing
        transport.ended = self._ended
        # Keyed by principal, since keys with one name may have different quotas.
        self._full: dict[Principal, tuple[float, wire.Why]] = {}
        self._headers: tuple[str, ...] = ()

    def refuse_early(self, context: Context) -> None:
        """Raises QueueFull while the transport is full, and the stored refusal while it is fresh."""
        if self._transport.full:
            raise QueueFull("as much waits for the process with the engine as a front end holds; try again soon")
        if not context.requests or context.principal not in self._full:
            return
        until, why = self._full[context.principal]
        if time.monotonic() < until:
            raise wire.error_of(why)

    async def resolve(self, context: Context, wanted: Wanted) -> list[Resolved | OneBertError]:
        headers, tries = self._headers, MAX_TRIES
        while True:
            self.refuse_early(context)
            reply = await self._transport.ask(_question(context, wanted, headers))
            if isinstance(reply, wire.Versions):
                return _resolved(reply)
            tries -= 1
            if reply.why.code != HeaderNeeded.code or not tries:
                raise wire.error_of(reply.why)
            headers = tuple(dict.fromkeys((*reply.why.detail.split(), *headers)))
            self._headers = headers[:MAX_HEADERS]

    def submit(self, block: Block) -> None:
        self._transport.submit(wire.BlockMessage.of(block))

    def withdraw(self, numbers: Sequence[int]) -> None:
        self._transport.withdraw(numbers)

    def shadow(self, questions: ShadowQuestions) -> None:
        self._transport.shadow(questions)

    def _ended(self, message: wire.EndedMessage) -> None:
        if message.full:
            self._note_full(message.full)
        self.answered(message.ended(self._tracing))

    def _note_full(self, full: Sequence[tuple[Principal, wire.Why]]) -> None:
        now = time.monotonic()
        if len(self._full) + len(full) > MAX_FULL:
            self._full = {principal: held for principal, held in self._full.items() if now < held[0]}
        self._full |= {principal: (now + FULL_SECONDS, why) for principal, why in full}


def _question(context: Context, wanted: Wanted, headers: Sequence[str]) -> wire.Resolve:
    return wire.Resolve(
        context.principal,
        context.request_id,
        remaining=context.deadline - time.monotonic(),
        refs=None if wanted.refs is None else [*wanted.refs],
        pair=wanted.pair,
        asked=wanted.asked,
        min_seq=context.min_seq,
        headers={name: context.header(name) for name in headers},
        only_facts=wanted.only_facts,
        partial=wanted.partial,
    )


def _resolved(reply: wire.Versions) -> list[Resolved | OneBertError]:
    facts, missed = {each.identity: each for each in reply.facts}, reply.missed
    found = (Resolved(facts[found.version], *msgspec.structs.astuple(found)[1:]) for found in reply.found)
    places = range(len(reply.found) + len(missed))
    return [wire.error_of(missed[place]) if place in missed else next(found) for place in places]


# Bytes that wait to be sent; further answers are dropped and counted.
MAX_BYTES = 2**21
# Seconds between two messages.
SEND_EVERY = 0.1


class RemoteSamples:
    """Takes the chosen answers of a front end; `loop` is the event loop that sends, set before the first answer."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._waiting: list[Kept] = []
        self._bytes = self._dropped = 0

    def take(self, answers: Sequence[Kept]) -> None:
        size = sum(answer.size for answer in answers)
        with self._lock:
            if self._transport.full or self._bytes + size > MAX_BYTES:
                self._dropped += len(answers)
                return
            first = not self._waiting
            self._waiting += answers
            self._bytes += size
        if first:
            self.loop.call_soon_threadsafe(self.loop.call_later, SEND_EVERY, self._send)

    def _send(self) -> None:
        with self._lock:
            message = wire.Samples(self._waiting, self._dropped)
            self._waiting, self._bytes, self._dropped = [], 0, 0
        self._transport.keep(message)
