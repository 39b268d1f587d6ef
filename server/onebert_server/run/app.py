"""The HTTP app of a replica: the routers on top of an open runtime."""

from fastapi import APIRouter

from onebert_server.facades.listings import CONTROL, showing
from onebert_server.facades.routes import answering, form_of
from onebert_server.http.web import WebApp, api_keys, web_app
from onebert_server.run.extension import installed
from onebert_server.runtime import Runtime


def control_routers() -> list[APIRouter]:
    """The routes of the core and of the extensions that do not classify, in the order of the OpenAPI document."""
    extensions = (router for extension in installed() for router in extension.routers)
    return [*(module.router for module in CONTROL), *extensions]


def create_app(runtime: Runtime) -> WebApp:
    """Builds the app for an open runtime; the caller closes the runtime."""
    routers = control_routers()
    return web_app(
        runtime,
        [answering(), *routers, showing(routers)],
        keys=api_keys(runtime.keys, runtime.settings.oidc),
        settings=runtime.settings,
        form_of=form_of,
    )
