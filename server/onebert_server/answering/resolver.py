"""Resolves the references of edges in the engine's process, once the versions are in memory."""

import asyncio
import random
from collections.abc import Callable, Collection
from contextlib import suppress

from onebert_encoder.maths.batch import BASE_ROW
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.gateway import BARE, Resolved, Wanted, refusal
from onebert_server.engine.host import Host
from onebert_server.limits import MAX_FANOUT
from onebert_server.versions.choice import KeyOf
from onebert_server.versions.directory import Meaning
from onebert_server.versions.facts import Facts, Identity, Shadowing
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import Held, Version
from onebert_store.errors import HeaderNeeded, InvalidInput, NotFound, OneBertError, TaskNotFound

# Seconds for which a row that was loaded for a request stays until the request is there.
ABOUT_TO_USE = 0.5
# In place of the number of a version, in answers of a base itself.
_NUMBER = 0


class Resolver:
    """Resolves by the directory; for one event loop.

    `keeps`: if there are any, answers may be kept. `shadowed`: if there are any, shadows compute.
    """

    def __init__(self, residents: Residents, keeps: Collection[object] = (), shadowed: Collection[object] = ()) -> None:
        self._residents = residents
        self._directory = residents.directory
        self._hosts = {host: index for index, host in enumerate(self._directory.hosts)}
        self._keeps, self._shadowed = keeps, shadowed
        self._bare = {host: _facts_of(host) for host in self._hosts}

    async def resolve(self, context: Context, wanted: Wanted) -> list[Resolved | OneBertError]:
        """See `Gateway.resolve`.

        Versions that are not in memory are pinned until all are. Then everything is resolved once more: what has moved
        or was deleted meanwhile is resolved to what it means now, and the rows and what they are for are of one moment.
        """
        context.principal.require_scope(Action.CLASSIFY)
        if context.min_seq > self._directory.position.seq:
            await self._directory.position.reached(context)
        refs = wanted.refs
        if refs and all(ref.startswith(BARE) for ref in refs):
            # A base that makes vectors does so for whoever classifies: they tell nothing of any task.
            return [*map(self._base, refs)]
        if wanted.only_facts:
            live = self._directory.live_facts(_takes(wanted), MAX_FANOUT, context.principal, _one_choice(context))
            _require_headers(context)
            return [Resolved(facts, 0, BASE_ROW, 0, lasting=False) for facts in live]
        missed: dict[str, OneBertError] = {}
        resolved = map(self._resolved, await self._in_memory(context, wanted, missed))
        if refs is None:
            return [*resolved]
        return [missed[ref] if ref in missed else next(resolved) for ref in refs]

    def _base(self, ref: str) -> Resolved:
        """Returns the row of the base with this name, the end of it or the digest; without a name, of the only base."""
        name = ref.removeprefix(BARE).removesuffix(f"@{_NUMBER}")
        names = {host: host.base.spec.name for host in self._hosts}
        hosts = [host for host, full in names.items() if name in ("", full, full.rpartition("/")[2], host.digest)]
        if len(hosts) != 1:
            here = f"this server's are {', '.join(names.values())}"
            raise TaskNotFound(f"there is no such base; {here}") if name else InvalidInput(f"name the base: {here}")
        facts = self._bare[hosts[0]]
        if isinstance(facts, str):
            raise InvalidInput(facts)
        return Resolved(facts, self._hosts[hosts[0]], BASE_ROW, int(hosts[0].bank.generation[BASE_ROW]))

    def held(self, shadowing: Shadowing) -> Held:
        """Returns the version and its shadows as far as they are still there; nothing without the version itself."""
        answering, *shadows = map(self._version, shadowing.versions)
        return Held([answering, *filter(None, shadows)] if answering else (), shadowing.payer)

    def _version(self, identity: Identity) -> Version | None:
        task, _, number = identity[0].rpartition("@")
        with suppress(NotFound):
            version = self._directory.version(task, int(number))
            if version.entry.digest == identity[1]:
                return version
        return None

    async def _in_memory(self, context: Context, wanted: Wanted, missed: dict[str, OneBertError]) -> list[Meaning]:
        """Returns the meanings of the references that are not among the `missed` ones, which get their errors."""
        pinned: list[Version] = []
        key_of, stay = _one_choice(context), 0.0
        try:
            while True:
                refs = [ref for ref in wanted.refs or () if ref not in missed]
                if wanted.refs is None:
                    meanings = self._directory.live_meanings(_takes(wanted), MAX_FANOUT, context.principal, key_of)
                else:
                    errors = missed if wanted.partial else None
                    meanings = self._directory.meanings(refs, context.principal, key_of, errors)
                waits = any(meaning.row is None for meaning in meanings)
                answering = [meaning.versions[0] for meaning in meanings] if waits else []
                pinned += answering
                _require_headers(context)
                if not waits:
                    stay = ABOUT_TO_USE
                    return meanings
                if not wanted.partial:
                    await self._residents.ready(answering, context)
                    continue
                names = [ref for ref in refs if ref not in missed]
                each = [self._residents.ready([version], context) for version in answering]
                outcomes = await asyncio.gather(*each, return_exceptions=True)
                for ref, outcome in zip(names, outcomes, strict=True):
                    if isinstance(outcome, OneBertError):
                        missed[ref] = outcome
                    elif outcome is not None:
                        raise outcome
        finally:
            if pinned:
                self._directory.unpin(pinned, stay)

    def _resolved(self, meaning: Meaning) -> Resolved:
        versions, row, keeping = meaning
        if row is None:
            raise ValueError("this version is not in memory")
        shadowing = None
        if self._shadowed and len(versions) > 1:
            shadowing = Shadowing(tuple(version.facts.identity for version in versions), versions.payer)
        place = self._hosts[row.slot.host], row.slot.number, row.generation
        return Resolved(row.facts, *place, keeping if self._keeps else None, versions.lasting, shadowing)


def _facts_of(host: Host) -> Facts | str:
    """Returns how the vectors of a base are read, as numbers of a regression, or why it makes none."""
    spec, vectors = host.base.spec, host.base.vectors
    if isinstance(vectors, str):
        return f"{spec.name} makes no vectors: {vectors}"
    places = [*map(str, range(spec.hidden_size))]
    reads = places, vectors.max_length, vectors.pooling, None, vectors.normalized
    return Facts(BARE + spec.name, _NUMBER, spec.digest, spec.digest, "regression", *reads)


def _takes(wanted: Wanted) -> Callable[[Facts], bool]:
    return lambda facts: refusal(facts, wanted.asked, wanted.pair) is None


def _require_headers(context: Context) -> None:
    """Raises HeaderNeeded, for a front end to ask again, if an alias chooses by headers that it did not send."""
    if context.lacking:
        raise HeaderNeeded(" ".join(dict.fromkeys(context.lacking)))


def _one_choice(context: Context) -> KeyOf:
    """Returns the request's keys, and where it has none one at random: the choice is the same after a version loads."""
    drawn = random.randbytes(8)  # noqa: S311 - no secret

    def key_of(sticky: str | None) -> bytes:
        return context.key_of(sticky) or drawn

    return key_of
