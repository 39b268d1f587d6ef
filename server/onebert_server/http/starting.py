"""What a server answers while it starts: that it is alive, how far its start is, and when to ask again."""

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.http.middleware import RequestMiddleware
from onebert_server.http.problems import problem_response
from onebert_server.http.refusals import RefusalMiddleware
from onebert_server.http.schemas.system import Health
from onebert_server.metrics import Metrics, RequestCounts
from onebert_server.progress import Progress
from onebert_server.telemetry.telemetry import Telemetry
from onebert_store.errors import OneBertError, ShuttingDown, Starting


class StartingApp:
    """Refuses every request but the one for liveness; once `ready` is set, that app answers instead.

    Attributes:
        ready: the app of the replica, as soon as there is one.
        metrics: what is counted meanwhile.
        telemetry: tells nothing.
        draining: whether the server was told to stop.
    """

    def __init__(self, progress: Progress) -> None:
        self.ready: ASGIApp | None = None
        self.metrics: RequestCounts = Metrics()
        self.telemetry = Telemetry()
        self.draining = False
        self._progress = progress
        self._starting = RequestMiddleware(RefusalMiddleware(self._answer), self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or passes the request on."""
        await (self.ready or self._starting)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response
        if scope["path"] == "/healthz":
            answer = JSONResponse(Health(status="alive").model_dump(exclude_none=True))
        else:
            answer = problem_response(scope, self._refusal())
        # Where there are front ends, they answer once the server is ready: a client must not keep this connection.
        answer.headers["Connection"] = "close"
        await answer(scope, receive, send)

    def _refusal(self) -> OneBertError:
        if self.draining:
            return ShuttingDown("the server is stopping")
        return Starting(f"the server is starting, {self._progress}")
