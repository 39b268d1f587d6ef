"""The HTTP app of a replica: the routers on top of an open runtime."""

from onebert_server.facades.listings import CONTROL, showing
from onebert_server.facades.routes import answering, form_of
from onebert_server.http.web import WebApp, oidc_tokens, web_app
from onebert_server.runtime import Runtime


def create_app(runtime: Runtime) -> WebApp:
    """Builds the app for an open runtime; the caller closes the runtime."""
    return web_app(
        runtime,
        [answering(), *(module.router for module in CONTROL), showing()],
        keys=runtime.keys,
        settings=runtime.settings,
        tokens=oidc_tokens(runtime.settings.oidc),
        form_of=form_of,
    )
