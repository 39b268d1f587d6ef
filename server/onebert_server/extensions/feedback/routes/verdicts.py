"""The route of verdicts on an alias's versions by feedback."""

from onebert_server.contract.tasks import VerdictsResponse
from onebert_server.extensions.feedback.service import ServiceOf
from onebert_server.extensions.feedback.verdicts import LEVEL
from onebert_server.http.routes.registry import AliasName, Name, registry_router
from onebert_server.http.routes.runtime_of import ViewOf

router = registry_router()


@router.get("/v1/tasks/{task}/aliases/{alias}/verdicts")
async def verdicts(task: Name, alias: AliasName, view: ViewOf, service: ServiceOf) -> VerdictsResponse:
    """Returns wins, losses and e-values of an alias's other versions beside the largest share, by outcomes alone."""
    target = view.alias(task, alias).target
    facts = await service.verdicts.of(task, target)
    return VerdictsResponse(task, alias, target.version, LEVEL, facts)
