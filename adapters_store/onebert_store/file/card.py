"""The card of a version: what its user decided, in the manifest of a file of any age."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from onebert_store.file.fields import Line, Strict
from onebert_store.file.manifest import Manifest

# Options of one file of rows, which mean nothing for another; and what the manifest itself says.
_NOT_KEPT = ("encoding", "sheet", "more", "task_type")


class Read(Strict):
    """How the rows of a training were read, by the names of its options."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    label_separator: str | None = None
    drop_unlabeled: bool = False
    drop_empty: bool = False


class Decide(Strict):
    """The origin of the manifest's decision.

    Attributes:
        targets: rates on new rows that thresholds and abstaining keep, such as `precision=0.9`; without one of
            thresholds these are as the user stated them.
        lacks: the targets that this version was to keep and does not -> why.
    """

    targets: list[Line] = Field(default_factory=list)
    lacks: dict[Line, Line] = Field(default_factory=dict)


class Card(Strict):
    """The choices of a user about a version; `train` has the other settings of its training, None without a record."""

    read: Read = Read()
    train: dict[str, Any] | None = None
    decide: Decide = Decide()

    @property
    def options(self) -> dict[str, Any]:
        """Every setting of the training by its option's name."""
        return {**self.read.model_dump(exclude_defaults=True), **(self.train or {})}

    def dump(self) -> dict[str, Any]:
        """The card as JSON values for a manifest."""
        return self.model_dump(exclude_defaults=True)


def card_of(manifest: Manifest) -> Card:
    """The card of a manifest."""
    return card_in(manifest.training)


def card_in(training: Mapping[str, Any]) -> Card:
    """The card in the facts of a training, also of an earlier file; one of another form counts as none."""
    recorded = training.get("card")
    try:
        return Card.model_validate(_of_earlier_file(training) if recorded is None else recorded)
    except (ValidationError, TypeError):
        return Card()


def card_from(options: Mapping[str, Any]) -> Card:
    """The card of a training by its options' names and values."""
    read = {name: value for name, value in options.items() if name in Read.model_fields}
    train = {name: value for name, value in options.items() if name not in (*Read.model_fields, *_NOT_KEPT)}
    return Card(read=Read(**read), train=train)


def _of_earlier_file(training: Mapping[str, Any]) -> dict[str, Any]:
    settings = training.get("settings")
    card = card_from(settings).dump() if isinstance(settings, dict) else {}
    fitted = _objects(training.get("calibration"))
    targets = [
        part["target"] for name, part in fitted.items() if name in ("thresholds", "abstain") and "target" in part
    ]
    if "train" in card and "positives" in (stated := fitted.get("stated", {})):
        card["train"]["positive"] = ",".join(stated["positives"])
    return {**card, "decide": {"targets": targets}}


def _objects(value: Any) -> dict[str, dict[str, Any]]:
    return {name: part for name, part in value.items() if isinstance(part, dict)} if isinstance(value, dict) else {}
