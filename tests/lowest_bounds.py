"""Prints constraints for pip: dependencies at their lower bounds, tools of tests as in constraints.txt.

`make test-lowest` installs by them. A bound that is below what the code needs, or that no release has, fails there.
"""

import re
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
# PyTorch is large, and others test its versions. This pandas asks for a newer numpy than the package does.
KEPT, FREE = {"torch"}, {"pandas"}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = {_name(line) for line in project["optional-dependencies"].pop("dev")} - FREE | KEPT
    for line in chain(project["dependencies"], *project["optional-dependencies"].values()):
        if (lowest := re.search(r">=([\d.]+)", line)) and _name(line) not in KEPT:
            print(f"{_name(line)}=={lowest[1]}")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if _name(line) in tools:
            print(line)


def _name(requirement: str) -> str:
    return re.split(r"[\[=<>;~! ]", requirement)[0]


if __name__ == "__main__":
    main()
