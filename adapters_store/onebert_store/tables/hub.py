"""Loads data sets of the Hugging Face Hub with the package `datasets`."""

import logging
from collections.abc import Mapping
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.tables.binary import arrow
from onebert_store.tables.table import Table

MAX_REASON = 200  # characters


def read_hub(name: str, splits: tuple[str, ...]) -> dict[str, Table]:
    """Loads tables by split, by `owner/dataset`, `dataset/config` or `owner/dataset/config`, whichever the Hub has."""
    try:
        import datasets  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise InvalidData("hf: data needs the package datasets: pip install '.[hub]' in the checkout") from None
    # Hides a warning per retry when the Hub cannot be reached; the error covers it.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    loaded = _load(datasets, name)
    label_names = label_names_of(next(iter(loaded.values())))
    tables = {}
    for split in splits:
        alike = [key for key in sorted(loaded) if key.startswith(split)]
        if alike:
            columns = arrow.decoded(loaded[alike[0]].to_dict())
            unread = [f"{name} has {len(alike)} {split} splits, of which {alike[0]} is read: {', '.join(alike)}"]
            notes = unread if alike[0] != split and alike[1:] else []
            tables[split] = Table(columns, f"{name} {alike[0]}", label_names=label_names, notes=notes)
    return tables


def label_names_of(data: Any) -> dict[str, tuple[str, ...]]:
    """Returns label names by column for columns of a Hugging Face data set; empty for other data."""
    # A DataFrame has an attribute `features` if one of its columns has this name.
    has_features = isinstance(getattr(data, "features", None), Mapping)
    return arrow.label_names_of(data.features.to_dict()) if has_features else {}


def _load(datasets: Any, name: str) -> Any:
    parts = name.split("/")
    candidates: list[tuple[str, str | None]] = [(name, None)] if len(parts) < 3 else []
    if len(parts) > 1:
        candidates.append(("/".join(parts[:-1]), parts[-1]))
    problem = ""
    for dataset, config in candidates:
        try:
            return datasets.load_dataset(dataset, config)
        except (FileNotFoundError, ValueError) as error:  # no such data set or config; the next candidate may exist
            # The user wrote the first candidate; the second is only another reading of the name, so report the first
            # error.
            problem = problem or _reason(error)
        except Exception as error:  # the Hub client raises many kinds
            problem = _reason(error)
            break
    raise InvalidData(f"the Hub data set {name[:100]} cannot be loaded: {problem}")


def _reason(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:MAX_REASON]}" if first else type(error).__name__
