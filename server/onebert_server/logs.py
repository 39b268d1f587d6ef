"""Logging: levels, failures and rate-limited warnings; the text of a user's input never reaches the log."""

import logging
import time
import traceback


def log_to_stderr(level: str) -> None:
    """Sets up logging; call it once."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # uvicorn's lines about its start repeat ours; keep its warnings and errors.
    # httpx logs each request with its address, which may hold a password.
    for library in ("uvicorn", "httpx"):
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.getLogger().level))


def log_failure(log: logging.Logger, what: str, error: BaseException) -> None:
    """Logs the traceback without the exception's message, which may quote a user's input."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed with %s\n%s", what, type(error).__name__, frames)


class Seldom:
    """Logs warnings that clients can cause at will: at most one in ten seconds, with a count of the suppressed ones."""

    INTERVAL = 10.0

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next = 0.0
        self._unsaid = 0

    def warning(self, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now < self._next:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} times more since this was last said)" if self._unsaid else ""
        self._log.warning(message + more, *arguments)
        self._next, self._unsaid = now + self.INTERVAL, 0
