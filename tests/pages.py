"""Pages of the docs that tests follow: their blocks of code, and what a reader's shell or Python prints for one."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from environments import printed
from servers import clean_env

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Block:
    """A block of code: its language, the word behind that (`server` of "```bash server"; may be empty), the code."""

    language: str
    kind: str
    code: str


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page, which is named from the checkout's root; of some languages alone, where these are named."""
    text = (ROOT / page).read_text(encoding="utf-8")
    matches = re.findall(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(*block) for block in matches if not languages or block[0] in languages]


def reader_env(**variables: str) -> dict[str, str]:
    """The environment variables of whoever has activated OneBERT's environment, and set nothing but those given."""
    return clean_env() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | variables


def run_block(language: str, code: str, folder: Path, **variables: str) -> str:
    """What `bash` or `python` code prints in the folder."""
    command = ["bash", "-euo", "pipefail"] if language == "bash" else [sys.executable]
    return printed([*command, "-c", code], folder, reader_env(PWD=str(folder), **variables))
