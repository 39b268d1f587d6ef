"""What goes to the log, and how: never the text of a user's input."""

import logging
import time
import traceback


def log_to_stderr(level: str) -> None:
    """Sets what is logged; to be called once."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # uvicorn's lines about its start repeat ours; its warnings and errors stay.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def log_failure(log: logging.Logger, what: str, error: BaseException) -> None:
    """Logs where it happened; the exception's own text may hold a user's input and stays out."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed with %s\n%s", what, type(error).__name__, frames)


class Seldom:
    """Logs what clients can cause at will: one line in ten seconds, which says how many there would have been."""

    INTERVAL = 10.0

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next = 0.0
        self._unsaid = 0

    def warning(self, message: str, *arguments: object) -> None:
        """Logs a warning, or counts it for the next one."""
        now = time.monotonic()
        if now < self._next:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} times more since this was last said)" if self._unsaid else ""
        self._log.warning(message + more, *arguments)
        self._next, self._unsaid = now + self.INTERVAL, 0
