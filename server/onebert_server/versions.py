"""What an answerer asks of the process with the engine: to find versions, and to compute with them.

`admission` is the answer of that process to itself, `remote` that of a front end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from onebert_encoder.tokens import Tokens
from onebert_store.manifest import Manifest

Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Wanted:
    """Which versions shall answer.

    Attributes:
        refs: a reference for each text; None is the live version of every task that takes such an input.
        pair: whether the input is a pair of texts; read only where there are no references.
    """

    refs: Sequence[str] | None
    pair: bool = False


class Record(Protocol):
    """What an answer is made with, and says of its version; numbers of versions are never used again."""

    @property
    def task(self) -> str: ...  # noqa: D102

    @property
    def version(self) -> int: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    @property
    def manifest(self) -> Manifest: ...  # noqa: D102


class Found(Protocol):
    """The versions of one request; ends with one call of `compute` or `release`."""

    @property
    def records(self) -> Sequence[Record]:
        """One for each reference."""

    async def compute(self, tokens: Sequence[Tokens]) -> Sequence[Logits]:
        """The logits of the i-th tokens by the i-th version.

        Raises:
            Moved: nothing was computed; only where versions are remembered and not pinned.
            QueueFull, ShuttingDown, TooLarge: nothing was computed.
            EngineFailed: they could not be computed.
        """

    async def confirm(self) -> None:
        """Before a request is refused for what a version is: makes sure that it is still that version.

        Raises:
            Moved: it is another.
        """

    def release(self) -> None:
        """Nothing will be computed."""


class Versions(Protocol):
    """Finds the versions that a request wants."""

    async def find(self, wanted: Wanted) -> Found:
        """Resolves all references at one moment.

        Raises:
            InvalidInput: not a reference, or too many tasks.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: there is no such version.
        """


class Moved(Exception):
    """References do not mean what was remembered; `now` is what they mean."""

    def __init__(self, now: Found) -> None:
        super().__init__()
        self.now = now
