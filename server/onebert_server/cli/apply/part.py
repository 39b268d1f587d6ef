"""The parts of a task that extensions set; each has a module `applied` with its `PART`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from onebert_server.cli.apply.key import Key
from onebert_server.client import Client
from onebert_server.installed import modules
from onebert_store.file.manifest import Manifest


class Change(NamedTuple):
    """A change of a part: its words in the difference, and the call that makes it."""

    words: str
    run: Callable[[Client], object]


class Part(Protocol):
    """One key of a task; `present` and what `wanted` returns are the part's own.

    Attributes:
        key: its name in the file.
        title: its name in the difference.
        before_moves: whether it is set before aliases move, or after.
    """

    key: str
    title: str
    before_moves: bool

    def wanted(self, key: Key, folder: Path) -> Any:
        """Reads the value of its key; raises InvalidInput with the key's path."""

    def present(self, client: Client, task: str) -> Any:
        """Asks the server for the part; None: it has none."""

    def change(self, task: str, wanted: Any, present: Any, manifest: Callable[[], Manifest]) -> Change | None:
        """Compares; None: they are equal. Raises InvalidInput with the key's path.

        Args:
            manifest: reads the manifest of the task's last version in the file.
        """

    def removal(self, task: str, present: Any) -> Change:
        """Deletes the part."""

    def written(self, present: Any) -> Mapping[str, Any]:
        """Writes the value that `wanted` reads as this part."""


def parts() -> list[Part]:
    """The parts of the installed extensions."""
    return [module.PART for module in modules("applied")]
