"""The extensions of this server, one line each; the core imports them by these names alone."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

INSTALLED = (
    "gate",
    "trainer",
    "feedback",
    "shadows",
    "watching",
    "webhooks",
)


def modules(part: str) -> Iterator[ModuleType]:
    """Imports the module `part` of every extension that has one, in the order of `INSTALLED`."""
    for name in INSTALLED:
        module = f"onebert_server.extensions.{name}.{part}"
        if find_spec(module) is not None:
            yield import_module(module)
