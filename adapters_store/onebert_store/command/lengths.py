"""Two lengths of help: a command with many options shows the usual ones by `--help`, every one by `--help-all`."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

# The help of a command with more options than this is the shorter one.
MANY = 15
# Options that few runs need, by their names in Python, of all commands.
SELDOM = frozenset(
    "encoding sheet label_separator drop_unlabeled drop_empty task_type train_rows validation_share more "
    "new_label_rows pooling class_weight cut max_steps batch_size learning_rate seed patience metric no_fingerprint "
    "part_rows dtype device url api_key as_json".split()
)


def shorten(command: Any) -> None:
    """Gives a command `--help-all`, and hides its seldom options from `--help`, if it has many."""
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    if len(options) <= MANY:
        return
    seldom = [option for option in options if option.name in SELDOM]
    command.add_help_option = False
    command.params += _help_options(_showing(seldom, hidden=True), _showing(seldom, hidden=False), len(options))


def _help_options(show: Callable[..., None], show_all: Callable[..., None], count: int) -> list[Any]:
    def helped(
        _: Annotated[
            bool, typer.Option("--help", help="Show the usual options and exit.", callback=show, is_eager=True)
        ] = False,
        __: Annotated[
            bool,
            typer.Option("--help-all", help=f"Show all {count} options and exit.", callback=show_all, is_eager=True),
        ] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(helped)
    parameters: list[Any] = typer.main.get_command(app).params
    for parameter in parameters:
        parameter.expose_value = False
    return parameters


def _showing(options: list[Any], hidden: bool) -> Callable[..., None]:
    def show(context: typer.Context, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            for option in options:
                option.hidden = hidden
            typer.echo(context.get_help(), color=context.color)
            raise typer.Exit

    return show
