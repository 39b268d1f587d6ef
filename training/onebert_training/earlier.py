"""The settings of a training in its version's card, and an earlier training that `onebert train --like` repeats."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from onebert_store.errors import InvalidInput, InvalidSettings
from onebert_store.file.card import Card, card_from, card_of
from onebert_store.file.manifest import Manifest
from onebert_store.spec import BaseSpec
from onebert_training.data.checks import listed
from onebert_training.data.dataset import Dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.settings import OF_STEPS, Settings
from onebert_training.methods.grammar import HEAD
from onebert_training.options import wrong_value

GROUPS = (Settings, DataOptions)
_HINTS = {name: hint for group in GROUPS for name, hint in get_type_hints(group, include_extras=True).items()}
FIELDS: dict[str, Any] = {
    field.name: (_HINTS[field.name], field.default) for group in GROUPS for field in fields(group)
}
"""Every option of a training by its field's name -> its type and default."""

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_Options: type[BaseModel] = create_model("Options", __config__=_STRICT, **FIELDS)


def settings_from(options: Mapping[str, Any]) -> tuple[Settings, DataOptions]:
    """The settings of options by their fields' names; raises InvalidSettings for what the command line refuses, too."""
    try:
        values = _Options.model_validate(dict(options)).model_dump()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise InvalidSettings(f"{first['loc'][0]}: {wrong_value(first)}") from None
    settings, reading = ({field.name: values[field.name] for field in fields(group)} for group in GROUPS)
    return Settings(**settings), DataOptions(**reading)


def repeatable(settings: Settings, reading: DataOptions) -> Card:
    """The card of a training: every setting with a value, but steps of an exact head and what is of one file alone."""
    unused = OF_STEPS if settings.method == HEAD else ()
    options = {**asdict(settings), **asdict(reading)}
    return card_from({name: value for name, value in options.items() if value is not None and name not in unused})


@dataclass(frozen=True)
class EarlierTraining:
    """The training of a version.

    Attributes:
        name: of the version in messages: `tone@3`, or a file's name.
        task: None if the manifest names none.
        settings, reading: as they were asked for; other values, such as the epochs of few rows, follow the data.
        data_digest: of the data as they were read.
        added_rows: rows from --more or feedback.
    """

    name: str
    task: str | None
    manifest: Manifest
    dtype: Literal["float32", "bfloat16"]
    settings: Settings
    reading: DataOptions
    data_digest: str | None
    added_rows: int

    def overridden(
        self, settings: Settings, reading: DataOptions, names: Collection[str]
    ) -> tuple[Settings, DataOptions]:
        """This training's settings with the named fields of others, without steps for an exact head.

        Raises InvalidSettings if they do not combine.
        """
        options = {**asdict(settings), **asdict(reading)}
        method = options["method"] if "method" in names else self.settings.method
        inherited = repeatable(replace(self.settings, method=method), self.reading).options
        inherited |= {"task_type": self.reading.task_type}
        return settings_from(inherited | {name: options[name] for name in names if name in options})

    def require_base(self, base: BaseSpec) -> None:
        """Refuses another base of the same name with InvalidInput."""
        if base.digest != self.manifest.base.digest:
            raise InvalidInput(f"{self.name} was trained on another base than {base.name} here: name one by --base")

    def differences(self, data: Dataset) -> list[str]:
        """Notes on rows that this training read and that a repetition on `data` does not read, or the reverse."""
        same = self.data_digest in (None, data.digest)
        notes = [] if same else [f"the data are not those of {self.name}"]
        if self.added_rows and data.added is None:
            notes.append(f"{self.name} also learned {self.added_rows:,} added rows: --feedback or --more adds rows")
        if lacking := [label for label in self.manifest.labels if label not in data.labels]:
            notes.append(f"{self.name} also has {listed(lacking)}, which no row has now")
        return notes


def earlier_training(name: str, manifest: Manifest) -> EarlierTraining:
    """The training that made a version; raises InvalidInput if its manifest does not record all settings."""
    training, card = manifest.training, card_of(manifest)
    if card.train is None:
        raise InvalidInput(
            f"{name} records no settings to repeat: it was imported, blended, or trained by an earlier OneBERT; "
            "name the options of its training"
        )
    try:
        settings, reading = settings_from(card.options | {"task_type": manifest.task_type})
    except InvalidSettings as error:
        raise InvalidInput(f"the settings of {name} cannot be repeated: {error.detail}") from None
    task, dtype = training.get("task"), training.get("dtype")
    data = _table(training, "data")
    digest, rows = data.get("digest"), _table(data, "more").get("rows")
    return EarlierTraining(
        name=name,
        task=task if isinstance(task, str) else None,
        manifest=manifest,
        dtype="bfloat16" if dtype == "bfloat16" else "float32",
        settings=settings,
        reading=reading,
        data_digest=digest if isinstance(digest, str) else None,
        added_rows=rows if isinstance(rows, int) else 0,
    )


def _table(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}
