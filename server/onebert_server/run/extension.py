"""An extension of the core: routes, settings, tables, and parts that listen to the hooks."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from fastapi import APIRouter

from onebert_server.installed import modules
from onebert_server.runtime import Columns, Runtime


@dataclass(frozen=True)
class Extension:
    """One extension, the value `EXTENSION` of its module `extension`; its fields for settings are in `settings`.

    Attributes:
        open: builds its part, adds listeners to `runtime.hooks` and starts threads, which the stack ends; returns the
            part, which its routes get by its class (`part_of`), or None if the settings switch the extension off.
        routers: routes of the control plane.
        columns: what it knows of tasks, for their status.
    """

    open: Callable[[Runtime, ExitStack], object | None]
    routers: Sequence[APIRouter] = ()
    columns: Columns | None = None


def installed() -> list[Extension]:
    """Returns the extensions of this server, in the order of the list."""
    return [module.EXTENSION for module in modules("extension")]
