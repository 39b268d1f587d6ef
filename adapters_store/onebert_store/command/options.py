"""What the help says of options that commands of several components have: one sentence for one thing."""

from typing import Annotated

import typer

TEXT = "Column of the text, a.b for a field of JSON objects; else found by name."
TEXT_PAIR = "Column of the second text of a pair."
ENCODING = "Encoding of text files without a byte order mark, such as cp1252; else UTF-8."
BASE = "The frozen encoder: a Hugging Face Hub id or a local folder; else all-MiniLM-L6-v2."

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
