"""The command `serve --ray`: a cluster serves for as long as the command runs."""

import logging
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from types import FrameType
from typing import Any

import typer
from ray import serve
from ray.serve.deployment import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from onebert_server.on_ray.application import FRONT_ENDS, NAME, Layout, application
from onebert_server.settings import Settings
from onebert_store.command.cluster import RayError, connect, ray
from onebert_store.errors import OneBertError

# Seconds between two looks at which front ends there are.
LOOK_EVERY = 5.0
# How Ray says that whoever is asked does not answer, or is no more.
_LOST = (RayError, RayServeException, RuntimeError, TimeoutError)
# How Ray says what a deployment ended with: the last line of a traceback of ours.
_OURS = re.compile(r"onebert_store\.errors\.\w+: (.+)")


def serve_on_ray(settings: Settings, address: str, layout: Layout) -> None:
    """Serves until SIGTERM or SIGINT, and says where.

    Args:
        settings: of every replica and front end.
        address: HOST:PORT of the cluster's head, or auto.
        layout: how many replicas there are, and of what.

    Raises:
        ServerUnreachable: no cluster answers there.
        InvalidSettings: not an address, or settings that are for one server alone.
        OneBertError: the cluster cannot serve this.
    """
    wanted = application(settings, layout)
    connect(address)
    try:
        with _told_to_stop() as stop:
            _serve(wanted, stop, settings.drain_delay + settings.shutdown_timeout + 15)
    except _Stopped:
        pass  # while it started
    finally:
        ray.shutdown()


def _serve(wanted: Application, stop: Event, patience: float) -> None:
    # What it logs repeats what is said here.
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    serve.start(proxy_location="Disabled")
    try:
        serve.run(wanted, name=NAME, route_prefix=None)
        front_ends = serve.get_deployment_handle(FRONT_ENDS, NAME)
        try:
            _watch(front_ends, stop)
        finally:
            # Replicas go with the application, so front ends drain before it does.
            with suppress(*_LOST):
                front_ends.broadcast("drain").results(timeout_s=patience, return_exceptions=True)
    except (RayError, RuntimeError) as error:
        raise OneBertError(_why(error)) from None
    finally:
        serve.delete(NAME)


def _watch(front_ends: DeploymentHandle[Any], stop: Event) -> None:
    """Says where front ends listen, as they come, until it is told to stop."""
    said: set[str] = set()
    while not stop.is_set():
        for where in sorted(_addresses(front_ends) - said):
            typer.echo(f"Listening on {where}")
            said.add(where)
        stop.wait(LOOK_EVERY)


def _addresses(front_ends: DeploymentHandle[Any]) -> set[str]:
    """Where front ends listen; none where one of them is just being lost, and the next look finds them."""
    try:
        return {*front_ends.broadcast("address").results(timeout_s=LOOK_EVERY)}
    except _LOST:
        return set()


def _why(error: Exception) -> str:
    """Why the cluster cannot serve: an error of ours that a deployment ended with, else what Ray says."""
    application = serve.status().applications.get(NAME)
    ended = [deployment.message for deployment in application.deployments.values()] if application else []
    ours = _OURS.findall("\n".join([str(error), *ended]))
    return ours[-1] if ours else f"the cluster cannot serve: {str(error).strip().splitlines()[0]}"


@contextmanager
def _told_to_stop() -> Iterator[Event]:
    """Set by a signal; one that comes while the cluster still starts raises _Stopped, since that waits for Ray."""
    stop = Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise _Stopped

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Stopped(Exception):
    """The command was told to stop."""
