"""Keeps an alias back until a version has passed the gate of its task."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.contract.status import GateInForce
from onebert_server.extensions.gate import routes
from onebert_server.extensions.gate.gates import Gates
from onebert_server.run.extension import Extension
from onebert_server.runtime import Runtime
from onebert_server.versions.version import TaskEntry


def _open(runtime: Runtime, _: ExitStack) -> Gates:
    gates = Gates(runtime.catalog, runtime.registry, runtime.answerer, runtime.registrars, runtime.hooks.announce)
    runtime.hooks.before_move.append(gates.before_move)
    return gates


def _columns(
    runtime: Runtime, tasks: Sequence[TaskEntry], context: Context, whole: bool
) -> dict[str, Mapping[str, Any]]:
    gates = runtime.parts[Gates]
    names, may = gates.tasks(), context.principal.may
    gated = [task.name for task in tasks if task.name in names and may(Action.PROMOTE, task.name)]
    return {name: {"gate": gates.counted(name, context) if whole else GateInForce()} for name in gated}


EXTENSION = Extension(_open, [routes.router], _columns)
