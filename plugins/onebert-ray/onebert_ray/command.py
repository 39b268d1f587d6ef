"""The command `serve --ray`: a cluster serves while the command runs."""

import logging
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event
from types import FrameType
from typing import Any

import typer
from ray import serve
from ray.serve.deployment import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from onebert_ray.application import FRONT_ENDS, NAME, application, layout_of
from onebert_server.settings import Settings
from onebert_store.command.cluster import RayError, connect, ray
from onebert_store.errors import OneBertError

# Seconds between two polls for front ends.
POLL_EVERY = 5.0
# Ray raises these when the called actor does not answer or has died.
_LOST = (RayError, RayServeException, RuntimeError, TimeoutError)
# Matches our own error in the last line of a traceback that Ray reports.
_OURS = re.compile(r"onebert_store\.errors\.\w+: (.+)")


def serve_on_ray(settings: Settings, address: str, layout: Mapping[str, Any]) -> None:
    """Serves on the cluster at `address` (HOST:PORT or auto) until SIGTERM or SIGINT; prints the front ends' URLs.

    `layout` has fields of Layout.
    """
    app = application(settings, layout_of(layout))
    connect(address)
    try:
        with _stop_event() as stop:
            _serve(app, stop, settings.drain_delay + settings.shutdown_timeout + 15)
    except _Stopped:
        pass  # a signal came during the start
    finally:
        ray.shutdown()


def _serve(app: Application, stop: Event, timeout: float) -> None:
    # Ray Serve's log would repeat the command's own output.
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    serve.start(proxy_location="Disabled")
    try:
        serve.run(app, name=NAME, route_prefix=None)
        front_ends = serve.get_deployment_handle(FRONT_ENDS, NAME)
        try:
            _watch(front_ends, stop)
        finally:
            # Drain the front ends before `serve.delete` stops the replicas.
            with suppress(*_LOST):
                front_ends.broadcast("drain").results(timeout_s=timeout, return_exceptions=True)
    except (RayError, RuntimeError) as error:
        raise OneBertError(_why(error)) from None
    finally:
        serve.delete(NAME)


def _watch(front_ends: DeploymentHandle[Any], stop: Event) -> None:
    printed: set[str] = set()
    while not stop.is_set():
        for where in sorted(_addresses(front_ends) - printed):
            typer.echo(f"Listening on {where}")
            printed.add(where)
        stop.wait(POLL_EVERY)


def _addresses(front_ends: DeploymentHandle[Any]) -> set[str]:
    """Returns no addresses if a front end dies during the call; the next poll retries."""
    try:
        return {*front_ends.broadcast("address").results(timeout_s=POLL_EVERY)}
    except _LOST:
        return set()


def _why(error: Exception) -> str:
    application = serve.status().applications.get(NAME)
    ended = [deployment.message for deployment in application.deployments.values()] if application else []
    ours = _OURS.findall("\n".join([str(error), *ended]))
    return ours[-1] if ours else f"the cluster cannot serve: {str(error).strip().splitlines()[0]}"


@contextmanager
def _stop_event() -> Iterator[Event]:
    """Yields an event that a signal sets; the handler also raises _Stopped to interrupt waits for Ray."""
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
    """A signal stopped the command."""
