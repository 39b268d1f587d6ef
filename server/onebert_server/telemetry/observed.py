"""What becomes known of one request while it is answered, wherever that happens; who wants it reads it at the end."""

from collections.abc import Mapping

# The phases of a request: its body is read; its texts are split; it waits, for its version to be loaded, too; batches
# with something of it are computed; its logits are read and written.
PARSE, TOKENIZE, QUEUE, FORWARD, ANSWER = "parse", "tokenize", "queue", "forward", "answer"


class Observed:
    """One request, from its head to its answer; each phase is told by whoever did it.

    Attributes:
        seconds: that each phase took, by its name, in the order in which they ended first.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def phase(self, name: str, start: float, end: float) -> None:
        """A phase has ended; it may come several times, and counts together.

        Args:
            name: of the phase.
            start: on the monotonic clock of this process.
            end: likewise.
        """
        self.seconds[name] = self.seconds.get(name, 0.0) + end - start

    def add(self, seconds: Mapping[str, float]) -> None:
        """So long phases took in another process."""
        for name, one in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + one

    @property
    def server_timing(self) -> bytes:
        """The header field `Server-Timing` (W3C), with the phases so far in milliseconds."""
        return ", ".join([f"{name};dur={1000 * seconds:.3f}" for name, seconds in self.seconds.items()]).encode()
