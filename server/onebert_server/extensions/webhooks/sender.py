"""Sends webhooks on a thread of its own: moves of aliases from the registry's feed, and events of this process."""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onebert_server.extensions.webhooks.message import Message, move_of, signed
from onebert_server.hooks import Event
from onebert_store.errors import OneBertError
from onebert_store.registry.feed import Feed
from onebert_store.registry.replicas import Cursor

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("onebert.webhooks")

# Seconds between two polls for something to send, and of the pauses after failures.
POLL_EVERY, FIRST_PAUSE, LONGEST_PAUSE = 0.5, 1.0, 300.0
# Seconds that a receiver may take to connect, to read and to answer, each.
TIMEOUT = 10.0
# Changes per read; events that wait in memory.
READ_TOGETHER, MOST_WAITING = 100, 1000
# Seconds that the end waits for a receiver.
CLOSE_TIMEOUT = 1.0
GONE = 410

# Events of this process that are sent.
SENT = ("gate.failed", "alarm.on", "alarm.off")


class Sender:
    """Sends until the receiver takes a message: moves at least once and in their order, other events while it runs.

    Args:
        count: called with `sent`, `failed` or `dropped`.
    """

    def __init__(self, url: str, secret: bytes, feed: Feed, cursor: Cursor, count: Callable[[str], None]) -> None:
        self._url, self._secret, self._feed, self._cursor, self._count = url, secret, feed, cursor, count
        self._waiting = deque[Message]()
        self._pause = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onebert-webhooks", daemon=True)

    def start(self) -> None:
        """Raises StorageUnavailable."""
        self._cursor.begin()
        self._thread.start()

    def close(self) -> None:
        """Ends at once; a message that is under way then may come again after the next start."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_TIMEOUT)

    def emit(self, event: Event) -> None:
        if event.type not in SENT:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._count("dropped")
        else:
            self._waiting.append(Message(f"event-{secrets.token_hex(16)}", event.type, datetime.now(UTC), event.data))

    def _run(self) -> None:
        import httpx  # noqa: PLC0415 - slow to import, and few servers send webhooks

        with httpx.Client(timeout=TIMEOUT, follow_redirects=False) as client:
            while not self._ended.wait(self._pause or POLL_EVERY):
                try:
                    ready = not self._cursor.behind or self._send_moves(client)
                    while ready and self._waiting and self._sent(client, self._waiting[0]):
                        self._waiting.popleft()
                except OneBertError:
                    pass  # the follower logs that the registry cannot be read
                # Catch everything: without this thread nothing is sent.
                except Exception as error:
                    logger.error("webhooks go on after an unexpected error: %s", type(error).__name__)

    def _send_moves(self, client: "httpx.Client") -> bool:
        """Sends what this replica may; False if the receiver took no message."""
        with self._cursor.claimed() as claimed:
            at = claimed
            while at is not None and (changes := self._feed.audit(at, READ_TOGETHER)):
                for change in changes:
                    message = move_of(change)
                    if message is not None and not self._sent(client, message):
                        return False
                    # Changes that are not sent are noted with the next one that is, or the last one.
                    if message is not None or change is changes[-1]:
                        if not self._cursor.advance(at, change.seq):
                            return True
                        at = change.seq
        return True

    def _sent(self, client: "httpx.Client", message: Message) -> bool:
        """Makes one attempt; no attempt after the end, nor after 410 until the next start."""
        import httpx  # noqa: PLC0415 - as above

        if self._ended.is_set():
            return False
        fields = signed(message, self._secret, int(time.time()))
        try:
            # The answer's body is not read.
            with client.stream("POST", self._url, content=message.body, headers=fields) as response:
                outcome, taken = f"status {response.status_code}", response.is_success
        except httpx.HTTPError as error:
            outcome, taken = type(error).__name__, False
        self._count("sent" if taken else "failed")
        if outcome == f"status {GONE}":
            logger.error("webhooks are not sent until the next start: the receiver is gone (status %d)", GONE)
            self._ended.set()
        elif taken and self._pause:
            logger.warning("the receiver takes webhooks again")
        elif not taken and not self._pause:
            logger.error("the receiver takes no webhooks, which wait: %s", outcome)
        self._pause = 0.0 if taken else min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return taken
