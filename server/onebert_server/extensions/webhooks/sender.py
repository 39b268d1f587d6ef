"""Sends webhooks on a thread of its own: changes from the registry's feed, and events of this process."""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from onebert_server.extensions.webhooks.message import WebhookMessage, message_of
from onebert_server.extensions.webhooks.receiver import open_receiver
from onebert_server.hooks import Event
from onebert_store.errors import OneBertError
from onebert_store.registry.feed import Feed
from onebert_store.registry.replicas import Cursor

logger = logging.getLogger("onebert.webhooks")

# Seconds between two polls for something to send, and of the pauses after failures.
POLL_EVERY, FIRST_PAUSE, LONGEST_PAUSE = 0.5, 1.0, 300.0
# Attempts after which a message is given up that the receiver refuses: half a minute. Statuses that refuse the moment,
# not the message.
MAX_REFUSALS, NOT_NOW = 6, (408, 425, 429)
# Changes per read; events that wait in memory.
READ_TOGETHER, MOST_WAITING = 100, 1000
# Seconds that the end waits for a receiver.
CLOSE_TIMEOUT = 1.0
GONE = 410

Post = Callable[[WebhookMessage], int | str]
# Events of this process that are sent.
SENT = ("gate.failed", "alarm.on", "alarm.off")


class Sender:
    """Sends until the receiver takes a message or keeps refusing it: changes in order, other events while it runs.

    Args:
        count: called with `sent`, `failed`, `dead` or `dropped`.
    """

    def __init__(self, url: str, secret: bytes, feed: Feed, cursor: Cursor, count: Callable[[str], None]) -> None:
        self._url, self._secret, self._feed, self._cursor, self._count = url, secret, feed, cursor, count
        self._waiting = deque[WebhookMessage]()
        self._pause = 0.0
        # The message that was refused last, and how often in a row.
        self._refused = ("", 0)
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
            self._waiting.append(
                WebhookMessage(f"event-{secrets.token_hex(16)}", event.type, datetime.now(UTC), event.data)
            )

    def _run(self) -> None:
        with open_receiver(self._url, self._secret) as post:
            while not self._ended.wait(self._pause or POLL_EVERY):
                try:
                    ready = not self._cursor.behind or self._send_changes(post)
                    while ready and self._waiting and self._settled(post, self._waiting[0]):
                        self._waiting.popleft()
                except OneBertError:
                    pass  # the follower logs that the registry cannot be read
                # Catch everything: without this thread nothing is sent.
                except Exception as error:
                    logger.error("webhooks go on after an unexpected error: %s", type(error).__name__)

    def _send_changes(self, post: Post) -> bool:
        """Sends what this replica may; False if a message has to wait."""
        with self._cursor.claimed() as claimed:
            at = claimed
            while at is not None and (changes := self._feed.audit(at, READ_TOGETHER)):
                for change in changes:
                    message = message_of(change)
                    if message is not None and not self._settled(post, message):
                        return False
                    # Changes that are not sent are noted with the next one that is, or the last one.
                    if message is not None or change is changes[-1]:
                        if not self._cursor.advance(at, change.seq):
                            return True
                        at = change.seq
        return True

    def _settled(self, post: Post, message: WebhookMessage) -> bool:
        """Makes one attempt; True if the receiver has the message, or never takes it.

        No attempt after the end, nor after 410 until the next start.
        """
        if self._ended.is_set():
            return False
        answer = post(message)
        status, outcome = (answer, f"status {answer}") if isinstance(answer, int) else (0, answer)
        taken = 200 <= status < 300
        self._count("sent" if taken else "failed")
        if status == GONE:
            logger.error("webhooks are not sent until the next start: the receiver is gone (status %d)", GONE)
            self._ended.set()
            return False
        refusals = self._refused[1] if self._refused[0] == message.id else 0
        refusals += 400 <= status < 500 and status not in NOT_NOW
        self._refused = message.id, refusals
        dead = not taken and refusals >= MAX_REFUSALS
        if dead:
            self._count("dead")
            logger.error("gave up a webhook that the receiver refuses: %s %s, %s", message.type, message.id, outcome)
        elif taken and self._pause:
            logger.warning("the receiver takes webhooks again")
        elif not taken and not self._pause:
            logger.error("the receiver takes no webhooks, which wait: %s", outcome)
        self._pause = 0.0 if taken or dead else min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return taken or dead
