"""The interface between a front end and the process with the engine; `unix/` and the plug-in for Ray implement it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.types import Receive, Scope, Send

from onebert_server.access.keys import KeyRing
from onebert_server.answering.gateway import ShadowQuestions
from onebert_server.remote import wire

# Seconds without a word after which the process with the engine counts as standing still.
SILENT = 2.0
NO_WORD = "the process with the engine does not answer"


class Transport(Protocol):
    """Carries messages to the process with the engine and back.

    There a `RemoteEdge` answers `ask`, and takes what `submit`, `withdraw` and `shadow` send; its app
    answers `forward`, `wire.keys` has what `listen` waits for, and `Hooks.sample` takes what `keep` sends.

    Attributes:
        ended: gets the requests that have ended, on the event loop; its gateway sets it.
    """

    ended: Callable[[wire.EndedMessage], None]

    @property
    def full(self) -> bool:
        """Whether that process leaves more unread than a front end shall hold."""

    async def listen(self, keys: KeyRing) -> None:
        """Returns once `keys` has the keys of the registry (`wire.exchange`); keeps them up to date from then on."""

    def keep(self, samples: wire.Samples) -> None:
        """Sends kept answers without waiting; they may be lost."""

    async def ask(self, question: wire.Resolve) -> wire.Versions | wire.Refused:
        """Has references resolved; a cancellation ends it there, too. Raises ShuttingDown or EngineFailed."""

    def submit(self, block: wire.BlockMessage) -> None:
        """Sends the requests of one turn without waiting; `ended` gets each of them."""

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Tells that nobody waits for requests any more, without waiting."""

    def shadow(self, questions: ShadowQuestions) -> None:
        """Sends the questions of shadows without waiting; see `Gateway.shadow`."""

    async def forward(self, scope: Scope, receive: Receive, send: Send, deadline: float) -> None:
        """Has the app of the process with the engine answer a request, whose principal is in the state.

        Raises:
            ShuttingDown: the process is gone.
            TimeoutError: the deadline (of `time.monotonic()`) is over, and the process has said nothing for `SILENT`
                seconds. While that process works, an upload may wait for its place beyond its time.
            ConnectionError: either, in the middle of the response.
            HTTPException: the body cannot be read.
        """
