"""Recipes: one TOML file per experiment, a grid of settings that expands into runs (docs/experiments.md)."""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from onebert_store.errors import InvalidSettings
from onebert_training.data.options import DataOptions
from onebert_training.earlier import FIELDS, settings_from
from onebert_training.fit.settings import Settings
from onebert_training.methods.methods import parse_method
from onebert_training.options import wrong_value

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

Scalar = bool | int | float | str
Choices = Annotated[list[Scalar], Field(min_length=1)]
Table = dict[str, Scalar | Choices]
# Fields of a run in a recipe: `data`, and the fields of `Settings` and `DataOptions`. TOML has no null, so "all" means
# no row limit. `validation_share` is set once per experiment.
_FIELDS: dict[str, Any] = {"data": (str, ...), **FIELDS, "train_rows": (FIELDS["train_rows"][0] | Literal["all"], None)}
del _FIELDS["validation_share"]
_Point: type[BaseModel] = create_model("Point", __config__=STRICT, **_FIELDS)


@dataclass(frozen=True)
class RunRequest:
    """One point of a grid; `data` is the data set's name in the recipe, `source` its path or `hf:…`."""

    experiment: str
    data: str
    source: str
    settings: Settings
    reading: DataOptions


def _check_names(table: dict[str, Any], *extra: str) -> dict[str, Any]:
    if unknown := sorted(set(table) - set(_FIELDS) - set(extra)):
        raise ValueError(f"there is no setting {', '.join(unknown)}; settings are {', '.join(_FIELDS)}")
    return table


def _check_single(table: Any) -> Any:
    if isinstance(table, dict) and (lists := [name for name, value in table.items() if isinstance(value, list)]):
        raise ValueError(f"{lists[0]} is a list; lists belong under grid, group or task")
    return table


def _check_lists(table: Any) -> Any:
    if isinstance(table, dict) and (single := [n for n, value in table.items() if not isinstance(value, list)]):
        raise ValueError(f"{single[0]} is not a list; single values belong under settings")
    return table


def _check_groups(groups: list[Table]) -> list[Table]:
    return [_check_names(group, "skip") for group in groups]


def _check_tasks(tasks: dict[str, Table]) -> dict[str, Table]:
    if any("data" in _check_names(table) for table in tasks.values()):
        raise ValueError("a task has no data of its own")
    return tasks


class Recipe(BaseModel):
    """An experiment; `paper` and `bases` are documentation only.

    Every table maps fields (`data`, and the fields of `Settings` and `DataOptions`) to values. Later tables win:
    `settings` (single values), `grid` (lists), one of `group` (parts of the grid with their own values, such as one
    method's learning rates; `skip` excludes data sets), then `task` (values for one data set, such as its metric).
    Lists multiply.
    """

    model_config = STRICT

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    paper: str | None = None
    description: str
    bases: list[str] = []
    validation_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    settings: Annotated[dict[str, Scalar], BeforeValidator(_check_single), AfterValidator(_check_names)] = {}
    grid: Annotated[dict[str, Choices], BeforeValidator(_check_lists), AfterValidator(_check_names)] = {}
    group: Annotated[list[Table], AfterValidator(_check_groups)] = []
    task: Annotated[dict[str, Table], AfterValidator(_check_tasks)] = {}

    @model_validator(mode="after")
    def _data_known(self) -> "Recipe":
        """Rejects unknown data sets: a misspelled name would leave its runs without their settings."""
        tables: list[Mapping[str, Any]] = [self.settings, self.grid, *self.group]
        known = {name for table in tables for name in _as_list(table.get("data", []))}
        named = {*self.task, *(name for group in self.group for name in _as_list(group.get("skip", [])))}
        if known and (unknown := named - known):
            raise ValueError(f"no run has the data {', '.join(sorted(map(str, unknown)))}")
        return self

    def runs(self, folder: Path | None = None, only: Collection[str] = ()) -> list[RunRequest]:
        """Expands the grid.

        Args:
            folder: holds the data sets by name; paths and `hf:…` are taken as they are.
            only: data sets or methods; if it names any data set, only those are run, and likewise for methods.

        Raises:
            InvalidSettings: a value has a wrong type, two runs are equal, or the recipe lacks a name in `only`.
            InvalidMethod: a method does not exist.
        """
        points = [point for group in self.group or [{}] for point in self._points(group)]
        for field, names in (("data", {p["data"] for p in points}), ("method", {p["method"] for p in points})):
            if wanted := names & set(only):
                points = [point for point in points if point[field] in wanted]
            only = set(only) - names
        if only:
            raise InvalidSettings(f"{self.name} has neither data nor a method named {', '.join(sorted(only))}")
        requests = [self._request(point, folder) for point in points]
        if len(set(requests)) < len(requests):
            raise InvalidSettings(f"{self.name}: two groups contain the same run")
        if not requests:
            raise InvalidSettings(f"{self.name}: nothing is left to run, or no data is named")
        return requests

    def _points(self, group: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        common = {**self.settings, **self.grid, **group}
        skip = _as_list(common.pop("skip", []))
        for data in _as_list(common.get("data", [])):
            if data in skip:
                continue
            lists = {name: _as_list(value) for name, value in ({**common, **self.task.get(data, {})}).items()}
            lists["data"] = [data]
            for values in product(*lists.values()):
                yield _check_point(self.name, dict(zip(lists, values, strict=True)))

    def _request(self, point: Mapping[str, Any], folder: Path | None) -> RunRequest:
        data, rows = point["data"], point["train_rows"]
        parse_method(point["method"])
        options = {name: value for name, value in point.items() if name != "data"}
        options |= {"train_rows": None if rows == "all" else rows, "validation_share": self.validation_share}
        settings, reading = settings_from(options)
        is_name = not data.startswith("hf:") and Path(data).name == data
        return RunRequest(
            experiment=self.name,
            data=data,
            source=str(folder / data) if folder and is_name else data,
            settings=settings,
            reading=reading,
        )


def load_recipe(path: Path) -> Recipe:
    """Reads a recipe and expands it once, so that errors show before the first run; raises as `Recipe.runs` does."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path.name} is not TOML: {error}") from None
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise InvalidSettings(f"{path.name}: {_first(error)}") from None
    recipe.runs()
    return recipe


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_point(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _Point.model_validate(values).model_dump()
    except ValidationError as error:
        raise InvalidSettings(f"{name}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}{': ' * bool(where)}{wrong_value(first)}"
