"""Shared by the registry's routes: their router, the task name, and headers for the OpenAPI document."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.routing import APIRoute
from pydantic import AfterValidator

from onebert_server.contract.declared import ALIAS, NAME
from onebert_server.http.routes.runtime_of import RuntimeOf
from onebert_server.http.strict import PROBLEMS, ContextOf, StrictRoute
from onebert_store.registry.names import check_name


def _named(task: str) -> str:
    check_name(task)
    return task


# The pattern is documentation, because the store words the rule.
Name = Annotated[str, Path(json_schema_extra={"pattern": NAME}), AfterValidator(_named)]
AliasName = Annotated[str, Path(json_schema_extra={"pattern": ALIAS})]


class RowsRoute(StrictRoute):
    """Two thousand rows, each with two texts, a label and a cell of slices, have so many values."""

    most_values = 2**14


def registry_router(route_class: type[APIRoute] = StrictRoute) -> APIRouter:
    """A router whose routes wait until this replica has seen the change in the request's `OneBERT-Min-Seq`."""
    return APIRouter(route_class=route_class, responses=PROBLEMS, tags=["tasks"], dependencies=[Depends(_wait_for_seq)])


async def _wait_for_seq(runtime: RuntimeOf, context: ContextOf) -> None:
    await runtime.directory.position.reached(context)


def header(name: str, pattern: str, description: str) -> dict[str, Any]:
    """A header for the OpenAPI document; the routes read it from the request themselves."""
    schema = {"type": "string", "pattern": pattern}
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}
