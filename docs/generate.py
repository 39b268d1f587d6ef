"""Writes the pages of docs/reference that come from the code: `python docs/generate.py`.

`tests/unit/test_reference.py` fails when a committed page differs from the code. An explanation stands once, in the
code: a `#:` comment above a setting or an HTTP error, the docstring of an error or of a route, the sentence of an
option.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from onebert_server import settings
from onebert_server.access.keys import KeyRing
from onebert_server.http import problems
from onebert_server.http.auth import OPEN_PATHS
from onebert_server.http.openapi import OWN
from onebert_server.installed import modules
from onebert_server.run.app import create_app
from onebert_server.runtime import Runtime
from onebert_server.settings import PREFIX, ServerSettings
from onebert_store.errors import OneBertError
from onebert_training.data.options import DataOptions
from onebert_training.fit import settings as training
from onebert_training.methods.table import METHODS
from onebert_training.options import RECIPES, annotated_fields, flag_of, sentence_of

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- `python docs/generate.py` writes this page; change the code instead. -->"
# A block of `#:` comments, and the first word of the line below it.
EXPLAINED = re.compile(r"((?: +#: .*\n)+) +(?:# .*\n +)*(\w+)")
# Raised by training, by the client or between processes; no server answers with them.
NOT_ON_THE_WIRE = frozenset(
    {
        "unsupported-base",
        "base-not-found",
        "invalid-method",
        "invalid-data",
        "invalid-settings",
        "server-unreachable",
        "store-locked",
        "row-gone",
    }
)


def main() -> None:
    """Writes every page."""
    for name, write in PAGES.items():
        (REFERENCE / name).write_text(write(), encoding="utf-8")


def _settings() -> str:
    explained = _explained(settings.__file__)
    for module in modules("settings"):
        explained |= _explained(module.__file__)
    schema = ServerSettings.model_json_schema()["properties"]
    rows = [
        (f"`{PREFIX}{name.upper()}`", _default(field.default), _values(schema[name]), explained[name])
        for name, field in ServerSettings.model_fields.items()
    ]
    return _page("Settings of the server", SETTINGS, _table(("variable", "default", "values", "meaning"), rows))


def _errors() -> str:
    explained = _explained(problems.__file__)
    errors = {code: (kind.status, _joined(kind.__doc__)) for code, kind in OneBertError.of_code.items()}
    errors["internal"] = OneBertError.status, _joined(OneBertError.__doc__).partition(".")[0] + "."
    errors |= {
        code: (status, explained[str(status)])
        for status, (code, _) in problems.HTTP_ERRORS.items()
        if str(status) in explained
    }
    rows = [
        (f"`{code}`", str(status), meaning)
        for code, (status, meaning) in sorted(errors.items(), key=lambda error: (error[1][0], error[0]))
        if code not in NOT_ON_THE_WIRE
    ]
    return _page("Errors", ERRORS, _table(("code", "status", "when"), rows))


def _routes() -> str:
    app = create_app(cast(Runtime, SimpleNamespace(keys=KeyRing({}), settings=ServerSettings())))
    own: list[tuple[str, ...]] = []
    others: dict[str, list[str]] = {}
    for path, methods in json.loads(app.control.document())["paths"].items():
        for method, operation in methods.items():
            route = f"`{method.upper()} {path}`"
            if set(OWN).isdisjoint(operation["tags"]):
                for client in operation["tags"]:
                    others.setdefault(client, []).append(route)
                continue
            asked = [
                parameter
                for parameter in operation.get("parameters", ())
                if parameter["in"] == "query" and "description" in parameter
            ]
            query = "".join(
                f" `?{parameter['name']}`: {parameter['description']}{_range(parameter['schema'])}."
                for parameter in asked
            )
            own.append((route, _joined(operation["description"]) + query, _statuses(operation["responses"])))
    opened = ", ".join(f"`{path}`" for path in sorted(OPEN_PATHS) if not path.startswith("/page/"))
    clients = (
        (client, ", ".join(routes)) for client, routes in sorted(others.items(), key=lambda item: item[0].lower())
    )
    tables = _table(("route", "does", "success"), own), CLIENTS, _table(("clients of", "routes"), clients)
    return _page("Routes", ROUTES.format(opened=opened), *tables)


def _options() -> str:
    options: list[tuple[str, ...]] = []
    keys: list[tuple[str, ...]] = []
    for group in (DataOptions, training.Settings):
        for field, _, annotated in annotated_fields(group):
            default = "" if field.default in (None, False, MISSING) else f"`{field.default}`"
            rows, name = (keys, field.name) if RECIPES in annotated else (options, flag_of(field))
            rows.append((f"`{name}`", default, sentence_of(annotated)))
    methods = _table(
        ("method", "trains, beside the head"), ((f"`{method.syntax}`", method.trains) for method in METHODS.values())
    )
    tables = _table(("option", "default", ""), options), KEYS, _table(("key", "default", ""), keys)
    return _page("Options and methods of training", OPTIONS, *tables, OF_METHODS, methods)


def _explained(module: str | None) -> dict[str, str]:
    """The `#:` comments of a module, by the first word below each."""
    text = Path(module or "").read_text(encoding="utf-8")
    return {name: _joined(block.replace("#:", "")) for block, name in EXPLAINED.findall(text)}


def _default(value: object) -> str:
    return "–" if value in (None, (), {}) else f"`{value}`"


def _values(schema: Mapping[str, Any]) -> str:
    """The values that a setting takes, if its type bounds them."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    if choices := [f"`{choice}`" for kind in kinds for choice in kind.get("enum", [])]:
        return ", ".join(choices)
    least, over, most = (kinds[0].get(bound) for bound in ("minimum", "exclusiveMinimum", "maximum"))
    low = f"over {over}" if over is not None else f"from {least}" if least is not None else ""
    return f"{low} to {most}" if most is not None else low


def _statuses(responses: Mapping[str, Any]) -> str:
    return ", ".join(sorted(status for status in responses if status.startswith("2")))


def _range(schema: Mapping[str, Any]) -> str:
    return f" ({_values(schema)})" if "maximum" in schema else ""


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", NOTE, *(part.strip() for part in parts))) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _joined(text: str | None) -> str:
    return " ".join((text or "").split())


SETTINGS = """
`onebert serve` reads these environment variables; its flags `--host`, `--port`, `--base`, `--data-dir`, `--dtype`,
`--device` and `--front-ends` win over them. A value that breaks a rule stops the server with one line, as does an
unknown variable that begins with `ONEBERT_`. (Kubernetes sets `ONEBERT_PORT` for a service named just `onebert`: turn
`enableServiceLinks` off there.)

`onebert store …` reads `ONEBERT_DATA_DIR` and `ONEBERT_REGISTRY`, too. Commands that ask a server read
`ONEBERT_URL` (default `http://127.0.0.1:8000`) and `ONEBERT_API_KEY`. OpenTelemetry's own variables turn on
[traces](monitoring.md#traces).
"""
ERRORS = """
Every answer that is not a success is a problem with one of these codes ([its form](../guide/api.md#errors)). The
client library raises them as the class of that name, as `onebert.errors.TaskNotFound`.
"""
ROUTES = """
A running server documents every body at `/docs` and `/openapi.json`; [the guide](../guide/api.md) explains them. With
API keys configured every path needs `Authorization: Bearer <key>`, except {opened}, and the files below `/page/`.
Without keys the server listens on loopback and answers only requests with a loopback name as `Host`.
"""
CLIENTS = """
## Routes of other people's clients

Each also below `/t/{task}` ([clients](clients.md)).
"""
OPTIONS = """
Options of `onebert train`: `--help` shows the usual ones, `--help-all` all. `onebert.train` and
[recipes](../experiments.md) have the same names with underscores, as `text_pair`.
"""
KEYS = """
Keys of recipes and arguments of `onebert.train` alone:
"""
OF_METHODS = """
## Methods

Brackets are optional parts, `|` separates alternatives; methods add, as in `bitfit+gamma`.
They come from the [papers](../experiments.md), LoRA (Hu et al. 2022), LoRA-XS (Bałazy et al. 2024), (IA)³ (Liu et al.
2022), RED (Wu et al. 2024) and diff pruning (Guo et al. 2020); `svd` is [decision
55](../decisions.md#55-the-default-trains-whole-matrices-and-keeps-their-leading-singular-parts).
"""
PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": _settings,
    "errors.md": _errors,
    "routes.md": _routes,
    "options.md": _options,
}

if __name__ == "__main__":
    main()
