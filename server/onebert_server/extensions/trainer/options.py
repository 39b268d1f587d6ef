"""The option of `onebert serve` for the trainer."""

from typing import Annotated

from onebert_server.cli.options import COMPUTING

OPTIONS = {
    "trainer": Annotated[
        bool | None, COMPUTING.option("Train what clients send examples of, in a process beside.", "--trainer")
    ]
}
