"""The façades' read-only routes, which only the process with the engine serves."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from onebert_server.facades.facade import Facade, Listing, ReadRequest
from onebert_server.facades.routes import errors_of, paths_of
from onebert_server.facades.table import facades, routes_of, shape_of
from onebert_server.http.cancel_scope import CancelScope
from onebert_server.http.formats import DataRoute
from onebert_server.http.routes import administration, aliases, classify, docs, page, status, system, tasks
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf
from onebert_server.http.strict import Answer, ContextOf
from onebert_store.errors import InvalidSettings

# The modules with the server's own routes that do not classify, in the order of the OpenAPI document.
CONTROL = (tasks, status, aliases, administration, system, docs, page)


def showing(control: Sequence[APIRouter]) -> APIRouter:
    """A router with all listings; `control` are the other routers that do not classify.

    Raises InvalidSettings if a façade claims a route of the server's own.
    """
    native = _own_routes(control)
    router = APIRouter()
    for facade in facades():
        for route, told_apart in routes_of(facade):
            shape = shape_of(route)
            if shape in native and not (told_apart and native[shape]):
                raise InvalidSettings(f"the façade '{facade.name}' has {route}, which is a route of the server's own")
        for listing in facade.listings:
            for path in paths_of(listing.path, alone=not listing.prefixed_alone):
                _add(router, path, facade, listing)
    return router


def _own_routes(control: Sequence[APIRouter]) -> Mapping[str, bool]:
    """The shapes of the server's own routes, and whether façades may share them."""
    routes = [
        *classify.ROUTES,
        *(route for router in control for route in router.routes if isinstance(route, APIRoute)),
    ]
    return {
        shape_of(f"{method} {route.path}"): isinstance(route, DataRoute)
        for route in routes
        for method in route.methods or ()
    }


def _add(router: APIRouter, path: str, facade: Facade, listing: Listing) -> None:
    router.add_api_route(
        path,
        _endpoint(listing),
        methods=["GET"],
        name=f"{facade.name} {path}",
        response_class=Response,
        responses=errors_of(path),
        tags=[facade.name],
        include_in_schema=path == listing.path,
        summary=(listing.answer.__doc__ or "").partition("\n")[0],
    )


def _endpoint(listing: Listing) -> Callable[..., Awaitable[Response]]:
    async def show(request: Request, runtime: RuntimeOf, view: ViewOf, context: ContextOf) -> Response:
        read_request = ReadRequest(request.path_params, request.scope["headers"], context, runtime, view)
        # After the body, `receive` yields nothing but the disconnect that CancelScope waits for.
        await request.body()
        with CancelScope(context, request.receive):
            content, headers, *_ = await listing.answer(read_request)
        return Answer(request, content, headers.get("Content-Type", "application/json"), headers)

    return show
