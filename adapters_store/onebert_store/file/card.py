"""The card of a version: what its user decided, in the manifest of a file of any age."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from onebert_store.file.fields import Finite, Line, Strict
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
    """What the manifest's decision follows from.

    Attributes:
        targets: rates on new rows that thresholds and abstaining keep, such as `precision=0.9`.
        thresholds: label -> the score that the user stated.
        lacks: the targets that the version before keeps and this one does not.
    """

    targets: list[Line] = Field(default_factory=list)
    thresholds: dict[Line, Finite] = Field(default_factory=dict)
    lacks: list[Line] = Field(default_factory=list)


class Card(Strict):
    """What a user decided about a version; `train` has the other settings of its training, None without a record."""

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
    """Reads the card of a manifest; earlier files have its parts under other keys. What is not of its form is empty."""
    recorded = manifest.training.get("card")
    try:
        return Card.model_validate(_of_earlier_file(manifest) if recorded is None else recorded)
    except ValidationError:
        return Card()


def card_from(options: Mapping[str, Any]) -> Card:
    """The card of a training by its options' names and values."""
    read = {name: value for name, value in options.items() if name in Read.model_fields}
    train = {name: value for name, value in options.items() if name not in (*Read.model_fields, *_NOT_KEPT)}
    return Card(read=Read(**read), train=train)


def _of_earlier_file(manifest: Manifest) -> dict[str, Any]:
    """The parts of a card: `settings`, the targets in `calibration`, and the decision's other thresholds as stated."""
    settings, decision = manifest.training.get("settings"), manifest.decision
    card = card_from(settings).dump() if isinstance(settings, dict) else {}
    fitted = _objects(manifest.training.get("calibration"))
    targets = [
        part["target"] for name, part in fitted.items() if name in ("thresholds", "abstain") and "target" in part
    ]
    thresholds = decision.thresholds if decision and "target" not in fitted.get("thresholds", {}) else None
    thresholds = thresholds or fitted.get("stated", {}).get("thresholds", {})
    return {**card, "decide": {"targets": targets, "thresholds": thresholds}}


def _objects(value: Any) -> dict[str, dict[str, Any]]:
    """The objects in an object of free JSON."""
    return {name: part for name, part in value.items() if isinstance(part, dict)} if isinstance(value, dict) else {}
