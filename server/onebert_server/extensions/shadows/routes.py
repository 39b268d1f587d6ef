"""The route of an alias's shadows."""

from itertools import product
from typing import Annotated

from fastapi import Depends

from onebert_server.contract.tasks import LabelPair, ShadowAgreement, ShadowsResponse
from onebert_server.extensions.shadows.shadows import Shadows
from onebert_server.http.routes.registry import AliasName, Name, registry_router
from onebert_server.http.routes.runtime_of import ViewOf, part_of

router = registry_router()

# Pairs of labels in a reply.
MAX_PAIRS = 100

ShadowsOf = Annotated[Shadows, Depends(part_of(Shadows))]


@router.get("/v1/tasks/{task}/aliases/{alias}/shadows")
async def shadows(task: Name, alias: AliasName, view: ViewOf, part: ShadowsOf) -> ShadowsResponse:
    """Returns how often the versions of an alias and its shadows answered alike, on this server since it started."""
    target = view.alias(task, alias).target
    agreements = []
    for (number, _), shadow in product(target.shares, target.shadows):
        versions = view.version(task, number), view.version(task, shadow.version)
        counts = part.agreement(*versions)
        labels = [LabelPair(*pair, answers) for pair, answers in counts.labels.most_common(MAX_PAIRS)]
        agreements.append(ShadowAgreement(number, shadow.version, counts.answers, counts.same, counts.left_out, labels))
    return ShadowsResponse(task, alias, agreements)
