"""Makes blends of versions and uploads them, each as a version of its own like any other."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.versions.catalog import Catalog, Taken
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import State, Version
from onebert_store.errors import InvalidDelta, InvalidInput, VersionUnavailable
from onebert_store.file.blend import MAX_BLENDED_BYTES, METHOD, blend
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps, loads


class Blending:
    """Uploads blends; call `upload` from the thread of uploads."""

    def __init__(self, catalog: Catalog, residents: Residents) -> None:
        self._catalog = catalog
        self._residents = residents

    def upload(self, task: str, weights: Mapping[int, float], context: Context) -> Taken:
        """Returns the version that is the blend of these versions; makes it if the task has none.

        Raises like `Catalog.upload_made`; VersionNotFound; VersionUnavailable if a part's own golden logits are not
        computed here; InvalidInput if the versions have no blend.
        """
        context.principal.require(Action.PROMOTE, task)
        context.principal.require(Action.UPLOAD, task)
        directory = self._catalog.directory
        versions = [directory.version(task, number, context.principal) for number in sorted(weights)]
        facts = [(one.entry.version, one.entry.digest, weights[one.entry.version]) for one in versions]
        parts = [{"version": number, "digest": digest, "weight": weight} for number, digest, weight in facts]
        known = [*directory.task(task).versions.values()]
        self._catalog.learn_all(known)
        if made := next((one for one in known if self._is_of(one, parts)), None):
            return Taken(made.entry, False, directory.position.seq)
        if (size := sum(one.entry.size for one in versions)) > MAX_BLENDED_BYTES:
            raise InvalidInput(f"the versions of a blend have {size} bytes together, and at most {MAX_BLENDED_BYTES}")
        deltas = [self._proved(one) for one in versions]
        delta = blend(deltas, [weight for _, _, weight in facts], {"task": task, "blend": parts})
        return self._catalog.upload_made(task, dumps(self._residents.with_golden(delta)), context)

    def _proved(self, version: Version) -> Delta:
        """Reads a part whose own golden logits this server computes too: the blend's will be this server's."""
        why, delta = version.reason, loads(self._catalog.read_delta(version))
        if version.state is not State.UNAVAILABLE:
            if version.proved:
                return delta
            try:
                self._residents.install(delta).release()
                return delta
            except InvalidDelta as error:
                why = error.detail
        raise VersionUnavailable(f"version {version.entry.version} cannot be a part of a blend: {why}")

    def _is_of(self, version: Version, parts: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a version is the blend of these parts; its digest cannot tell, as golden logits round otherwise."""
        if version.method != METHOD or version.state is State.UNAVAILABLE:
            return False
        return bool(self._catalog.manifest(version.entry).training.get("blend") == parts)
