"""The app that serves while a server starts: liveness, and 503 with the progress of the start."""

from collections.abc import Awaitable

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.http.pipeline import Pipeline
from onebert_server.http.problems import problem_response
from onebert_server.http.schemas.system import Health
from onebert_server.telemetry.metrics import Metrics
from onebert_server.telemetry.telemetry import Telemetry
from onebert_server.versions.progress import Progress
from onebert_store.errors import OneBertError, ShuttingDown, Starting


class StartingApp:
    """Refuses every request except for liveness; after `ready` is set, passes all requests to that app."""

    def __init__(self, progress: Progress) -> None:
        self.ready: ASGIApp | None = None
        self.telemetry = Telemetry()
        self.telemetry.counts = Metrics()
        self.draining = False
        self._progress = progress
        self._starting = Pipeline(self, self._answer)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (self.ready or self._starting)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response
        if scope["path"] == "/healthz":
            answer = JSONResponse(Health(status="alive").model_dump(exclude_none=True))
        else:
            answer = problem_response(scope, self._refusal())
        # Front ends, if any, serve once the server is ready, so a client must not keep this connection.
        answer.headers["Connection"] = "close"
        await answer(scope, receive, send)

    def _refusal(self) -> OneBertError:
        if self.draining:
            return ShuttingDown("the server is stopping")
        return Starting(f"the server is starting, {self._progress}")
