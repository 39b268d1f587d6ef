"""Plug-ins: the entry points of installed packages (docs/reference/plugins.md has the contract of each group)."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from onebert_store.errors import InvalidSettings

COMMANDS, FACADES, BLOBS, TRANSPORTS = "onebert.commands", "onebert.facades", "onebert.blobs", "onebert.transports"
REDACTORS = "onebert.redactors"


@dataclass(frozen=True, slots=True)
class Plugin:
    """One name of a group, with the entry points that claim it: a usable one has exactly one."""

    name: str
    claims: list[EntryPoint]

    @property
    def module(self) -> str:
        return self.claims[0].module

    def load(self, kind: str = "") -> Any:
        """Imports the object; raises InvalidSettings, one line that begins with `kind`, if it cannot."""
        try:
            if len(self.claims) == 1:
                return self.claims[0].load()
            packages = sorted(claim.dist.name for claim in self.claims if claim.dist is not None)
            reason = f"{' and '.join(packages)} both have it; uninstall one"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        raise InvalidSettings(f"{kind}'{self.name}' is unavailable: {reason}")


def installed(group: str) -> dict[str, Plugin]:
    """The plug-ins of a group by name; reads the metadata of every installed package, which takes milliseconds."""
    plugins: dict[str, Plugin] = {}
    for entry in entry_points(group=group):
        plugins.setdefault(entry.name, Plugin(entry.name, [])).claims.append(entry)
    return plugins
