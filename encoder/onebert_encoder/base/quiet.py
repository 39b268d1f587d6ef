"""Keeps transformers from printing while it loads a model; imports it on first use."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Turns off the warnings and progress bars of transformers while the block runs."""
    from transformers.utils import logging  # noqa: PLC0415 - a server does without

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
