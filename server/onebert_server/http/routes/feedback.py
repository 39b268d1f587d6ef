"""The route of feedback."""

from fastapi import Request

from onebert_server.contract.feedback import FeedbackResponse
from onebert_server.http.patience import Patience
from onebert_server.http.routes.registry import registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf
from onebert_server.http.schemas.feedback import FeedbackRequest
from onebert_server.http.strict import ContextOf

router = registry_router()


@router.post("/v1/feedback")
async def feedback(body: FeedbackRequest, request: Request, runtime: RuntimeOf, context: ContextOf) -> FeedbackResponse:
    """Records the right labels of 1 to 64 kept answers or texts: all, or none.

    Every version of the task's `live` answers each text, and the row has all answers beside the right label. If `live`
    decides by verdicts and this feedback completes one, the alias moves soon after the answer.
    """
    async with Patience(context, request.receive):
        rows = await runtime.feedback.record(body.data, context)
    runtime.verdicts.follow({one.task for one in rows})
    return FeedbackResponse(rows)
