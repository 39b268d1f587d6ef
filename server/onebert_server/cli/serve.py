"""The command `serve`."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from onebert_server.cli.options import COMPUTING, DataDir, Device, Dtype
from onebert_server.installed import modules
from onebert_store.command.options import BASE, Panel
from onebert_store.errors import InvalidSettings
from onebert_store.plugins import TRANSPORTS, installed

if TYPE_CHECKING:
    from onebert_server.settings import Settings

LISTENING = Panel("Address")
CLUSTER = Panel("Cluster")


def _with_options_of_extensions(command: Callable[..., None]) -> Callable[..., None]:
    """Puts the `OPTIONS` of extensions, by the names of their settings, in the place of the keyword arguments."""
    options = {name: option for module in modules("options") for name, option in module.OPTIONS.items()}
    signature = inspect.signature(command)
    parameters = [
        *(
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in options.items()
        ),
    ]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__.update(options)
    return command


@_with_options_of_extensions
def serve(
    host: Annotated[str | None, LISTENING.option("Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, LISTENING.option("Port; 0 takes a free one; default 8000.")] = None,
    front_ends: Annotated[
        int | None,
        LISTENING.option(
            "How many processes take HTTP and tokenize for the one that computes; 0: it does all itself. Default: 0,"
            " beside a GPU half of the cores, at most 8.",
            metavar="N",
        ),
    ] = None,
    base: Annotated[list[str] | None, COMPUTING.option(BASE, "--base")] = None,
    dtype: Dtype = None,
    device: Device = None,
    data_dir: DataDir = None,
    ray: Annotated[
        str | None,
        CLUSTER.option(
            "A Ray cluster that serves, such as auto or HOST:PORT; each of its nodes gets a front end.",
            metavar="ADDRESS",
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        CLUSTER.option(
            "How many replicas of the engine; default 1. MIN-MAX goes by the work that is asked of them.",
            metavar="N|MIN-MAX",
        ),
    ] = None,
    cpus: Annotated[int | None, CLUSTER.option("Processors of each replica; default 1.")] = None,
    gpus: Annotated[int | None, CLUSTER.option("GPUs of each replica; default 0.")] = None,
    **of_extensions: object,
) -> None:
    """Serve classifiers over HTTP until SIGTERM or Ctrl-C.

    Every other setting is an ONEBERT_… environment variable (docs/reference/settings.md); a misspelled one is refused.
    When the server is ready, it prints one line on standard output. On an address that other machines can reach it
    needs API keys (ONEBERT_API_KEYS).
    """
    from onebert_server.engine.memory import importing  # noqa: PLC0415

    with importing():
        from onebert_server.settings import load_settings  # noqa: PLC0415
    settings = load_settings(
        host=host,
        port=port,
        base=base,
        data_dir=data_dir,
        dtype=dtype,
        device=device,
        front_ends=front_ends,
        **of_extensions,
    )
    layout = {"replicas": replicas, "cpus": cpus, "gpus": gpus}
    layout_options = {name: value for name, value in layout.items() if value is not None}
    if ray is not None:
        _on_ray(settings, ray, layout_options)
        return
    if layout_options:
        raise InvalidSettings(f"--{next(iter(layout_options))} is for a cluster: --ray ADDRESS")
    with importing():
        from onebert_server.run import serve as server  # noqa: PLC0415
    server.serve(settings)


def _on_ray(settings: "Settings", address: str, layout: dict[str, str | int]) -> None:
    for name in (name for module in modules("settings") for name in getattr(module, "OF_ONE_SERVER", ())):
        if getattr(settings, name):
            raise InvalidSettings(f"ONEBERT_{name.upper()} is for one server, not for the replicas of a cluster")
    if (plugin := installed(TRANSPORTS).get("ray")) is None:
        raise InvalidSettings("--ray needs Ray Serve: pip install '.[ray-serve]' ./plugins/onebert-ray in the checkout")
    plugin.load("the transport ")(settings, address, layout)
