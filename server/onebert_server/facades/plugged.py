"""The façades of installed plug-ins."""

from functools import cache

from onebert_server.facades.facade import Facade
from onebert_store.errors import InvalidSettings
from onebert_store.plugins import FACADES, installed


@cache
def plugged_in() -> tuple[Facade, ...]:
    """Loads them once per process; raises InvalidSettings, one line, if one cannot be loaded."""
    plugins = {name: plugin.load("the façade ") for name, plugin in sorted(installed(FACADES).items())}
    for name, facade in plugins.items():
        if not isinstance(facade, Facade):
            raise InvalidSettings(f"the façade '{name}' is unavailable: it is a {type(facade).__name__}, not a Facade")
    return tuple(plugins.values())
