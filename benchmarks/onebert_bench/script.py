"""The command line of the scripts, and their progress."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

_STARTED = time.monotonic()


def options(doc: str, **defaults: Any) -> argparse.Namespace:
    """Reads a script's options, `--with-dashes` for each argument.

    Args:
        doc: the script's docstring, which is its help.
        defaults: the default of each option. False makes a switch, a list takes several values, a type makes an option
            that is required, and None is a text that may be left out.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(option, type=default, required=True)
        elif isinstance(default, list | tuple):
            # Not given as the default, to which "extend" would add.
            parser.add_argument(option, type=type(default[0]), nargs="+", action="extend")
        else:
            parser.add_argument(option, type=str if default is None else type(default), default=default)
    asked = parser.parse_args()
    vars(asked).update({name: defaults[name] for name, value in vars(asked).items() if value is None})
    return asked


def say(what: str) -> None:
    """Prints a line on standard error, with the seconds since the start."""
    print(f"{time.monotonic() - _STARTED:6.0f} s  {what}", file=sys.stderr, flush=True)


ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
