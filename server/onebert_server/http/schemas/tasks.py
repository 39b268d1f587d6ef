"""Bodies of changes to tasks and aliases, and the descriptions of a version that only the page reads."""

from typing import Annotated

from pydantic import Field, model_validator

from onebert_server.contract.tasks import ShadowShare, TargetFacts, VersionFacts
from onebert_server.http.schemas.common import RequestBody
from onebert_store.file.fields import Line
from onebert_store.file.manifest import Manifest
from onebert_store.registry.target import MAX_VERSIONS, Shadow, Target, alone, check_target

Number = Annotated[int, Field(ge=1, lt=2**31)]
NumberText = Annotated[str, Field(pattern="^[1-9][0-9]{0,9}$")]
Percent = Annotated[int, Field(ge=1, le=100)]


class AliasRequest(RequestBody):
    """The new meaning of an alias: one version, or a split of the requests; with shadows, or without."""

    version: Number | None = None
    split: Annotated[
        dict[NumberText, Percent] | None,
        Field(min_length=1, description="percentage of the requests by version, 100 together"),
    ] = None
    sticky: Annotated[
        str | None,
        Field(max_length=80, description="`principal` or `header:NAME`: one key, one version; without it by chance"),
    ] = None
    shadow: Annotated[list[ShadowShare] | None, Field(max_length=MAX_VERSIONS)] = None
    force: Annotated[bool, Field(description="whether the alias moves past the task's gate")] = False
    message: Annotated[Line | None, Field(description="why it moves, for the audit trail")] = None

    @model_validator(mode="after")
    def _has_reason(self) -> "AliasRequest":
        if self.force and self.message is None:
            raise ValueError("force takes a message")
        return self

    @model_validator(mode="after")
    def _one_meaning(self) -> "AliasRequest":
        if (self.version is None) == (self.split is None):
            raise ValueError("an alias means a version, or a split of the requests: give one of the two")
        return self

    @property
    def target(self) -> Target:
        """The target; raises InvalidInput if it breaks a rule."""
        shares = {self.version: 100} if self.version else {int(n): share for n, share in (self.split or {}).items()}
        shadows = sorted(Shadow(shadow.version, shadow.percent) for shadow in self.shadow or ())
        target = Target(tuple(sorted(shares.items())), self.sticky, tuple(shadows))
        check_target(target)
        return target


def facts_of(target: Target) -> TargetFacts:
    """The target of an alias as clients read it."""
    shadows = [ShadowShare(*shadow) for shadow in target.shadows] or None
    shares = {str(version): share for version, share in target.shares}
    return TargetFacts(shares, target.sticky, shadows, target.tag)


def rollout_of(target: Target) -> TargetFacts | None:
    """The target of an alias that means more than one version; None for one version alone."""
    return None if target == alone(target.version) else facts_of(target)


class VersionResponse(VersionFacts, frozen=True, kw_only=True):
    """One version with its manifest."""

    manifest: Manifest  # type: ignore[assignment]  # a client reads it as a dict
