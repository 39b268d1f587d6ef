"""Options from annotated dataclasses: one list of fields makes a command's options, a recipe's fields and a docs table.

A field is `name: Annotated[type, Doc("one sentence"), …] = default`. The annotation may add bounds (`Ge`, `Gt`, `Le`,
`Lt`), a `Panel` of the command's help, and `RECIPES`. An option has its field's name, with dashes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le
from rich.markup import escape
from typer.models import OptionInfo
from typing_extensions import Doc

from onebert_store.command import options
from onebert_store.command.options import BASE, Panel

if TYPE_CHECKING:
    from onebert_encoder.base.base import Base


# The types of fields -> what the help calls a value.
METAVARS: dict[Any, str] = {bool: "", int: "N", float: "X", str: "TEXT"}
DATA = Panel("Data")
METHOD = Panel("What is trained")
STEPS = Panel("How long and how fast")
OUTPUT = Panel("Machine and output")
MEND = Panel("A mended copy")
# Marks a field that recipes and `onebert.train` have, and no command.
RECIPES = "recipes"

BaseName = Annotated[str | None, OUTPUT.option(BASE, "--base")]
Dtype = Annotated[
    Literal["float32", "bfloat16"],
    OUTPUT.option("Numbers that the forward pass computes in; the delta file has the same with both."),
]
Device = Annotated[str | None, OUTPUT.option("cpu, cuda or cuda:N; else cuda where there is one.")]
AsJson = Annotated[bool, OUTPUT.option("Print one JSON object instead of a table.", "--json")]


@dataclass(frozen=True)
class Machine:
    """The base, and how it computes."""

    base: BaseName = None
    dtype: Dtype = "float32"
    device: Device = None

    def load(self) -> "Base":
        """Loads the base, with a spinner; raises as `load_on`."""
        from onebert_store.command import console  # noqa: PLC0415
        from onebert_training.device import load_on  # noqa: PLC0415 - imports torch

        with console.busy("loading the base"):
            return load_on(self.base, self.dtype, self.device)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces each dataclass parameter of a command by one option per field; the command gets the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    return options.with_options(**{name: _maker(hint) for name, hint in hints.items() if is_dataclass(hint)})(command)


def _maker(group: Any) -> Callable[..., Any]:

    def make(**values: Any) -> Any:
        return group(**values)

    make.__signature__ = Signature([*_options(group)])  # type: ignore[attr-defined]
    return make


def annotated_fields(group: Any) -> Iterator[tuple[Field[Any], Any, tuple[Any, ...]]]:
    """Yields every field of an options dataclass, with its type and the rest of its annotation."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        annotation = hints[field.name]
        hint, *annotated = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        yield field, hint, tuple(annotated)


def wrong_value(error: Mapping[str, Any]) -> str:
    """Turns one pydantic error about an option into a sentence without a subject: `must be at least 1`."""
    template = {
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be above {gt}",
        "less_than_equal": "must be at most {le}",
        "less_than": "must be below {lt}",
        "literal_error": "must be {expected}",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
    }.get(error["type"])
    return template.format_map(error.get("ctx", {})) if template else error["msg"].removeprefix("Value error, ")


def _options(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field, hint, annotated in annotated_fields(group):
        if RECIPES in annotated:
            continue
        if any(isinstance(part, OptionInfo) for part in annotated):  # an option of its own
            annotation = hints[field.name]
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)
            continue
        bounds: dict[str, Any] = {}
        for bound in annotated:
            bounds |= {"min": bound.ge} if isinstance(bound, Ge) else {"max": bound.le} if isinstance(bound, Le) else {}
        panel = next((part for part in annotated if isinstance(part, Panel)), None)
        # A short metavar leaves room for the sentence in 80 columns; choices are listed after the sentence.
        kinds = (hint, *get_args(hint))
        metavar = next((name for kind, name in METAVARS.items() if kind in kinds), "NAME")
        choices = [name for arg in get_args(hint) if get_origin(arg) is Literal for name in get_args(arg)]
        sentence = escape(sentence_of(annotated) + (f" One of {', '.join(choices)}." if choices else ""))
        option = typer.Option(flag_of(field), help=sentence, metavar=metavar, rich_help_panel=panel, **bounds)
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[hint, option])


def flag_of(field: Field[Any]) -> str:
    """The option name of a field."""
    return f"--{field.name.replace('_', '-')}"


def sentence_of(annotated: tuple[Any, ...]) -> str:
    """The help sentence of a field's option."""
    return next(part.documentation for part in annotated if isinstance(part, Doc))
