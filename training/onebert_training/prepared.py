"""Runs one training from data to file without any output; `onebert train` and `onebert.train` share it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import Any

from onebert_encoder.base.base import Base
from onebert_store.disk import check_free, check_writable
from onebert_store.errors import InvalidSettings
from onebert_store.file.card import Card, card_of
from onebert_store.file.delta import ADAPTER_DOWN
from onebert_store.file.format import save
from onebert_store.file.manifest import SIAMESE
from onebert_store.registry.names import check_name
from onebert_store.tables.tables import Source
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.device import load_on
from onebert_training.earlier import EarlierTraining, repeatable
from onebert_training.fit.checkpoint import checkpoint_path
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.record import make_record
from onebert_training.fit.result import Result
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings, refuse_steps
from onebert_training.insight.calibration import targets_of
from onebert_training.insight.decided import repeat_decision
from onebert_training.interop.merged import merge, write_checkpoint
from onebert_training.methods.grammar import HEAD
from onebert_training.selection.few import make_run, read_pairs
from onebert_training.selection.selection import Selection, forget

Busy = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class PreparedRun:
    """A checked training: the file or folder `out`, the `base` as the user gave it, and the `card`."""

    run: Run
    out: Path
    base: str | None
    card: Card
    like: EarlierTraining | None = None

    @property
    def checkpoint(self) -> Path:
        return checkpoint_path(self.out)

    def forget(self) -> None:
        forget(self.checkpoint)

    def completed(self, selection: Selection) -> Result:
        """The kept result; its manifest has the card and the comparison, and the decision of the version it is like."""
        facts = {
            **{"card": self.card.dump(), "yardsticks": self.run.baselines.provenance(selection.run.metric)},
            **({"contest": selection.facts} if selection.facts else {}),
        }
        result, run = selection.result.with_provenance(facts), self.run
        if result.delta is None or self.like is None:
            return result
        delta = repeat_decision(result.delta, self.like.manifest, run.base, run.data.splits)
        recorded = delta.manifest.training
        test = result.test and recorded["test"]
        return replace(result, delta=delta, validation=recorded.get("validation", result.validation), test=test)

    def finish(self, selection: Selection) -> tuple[dict[str, Any], list[str]]:
        """Writes the kept result; returns the record, and notes on the file to show. Raises StorageFull."""
        run, result = selection.run, self.completed(selection)
        notes = write_result(run, result, self.out, self.base)
        lacks = card_of(result.delta.manifest).decide.lacks if result.delta else {}
        if self.like and lacks:
            reasons = ", ".join(f"{target} ({why})" for target, why in lacks.items())
            command = " ".join(
                ["onebert calibrate", quote(str(self.out)), "--data ROWS", *map("--target {}".format, lacks)]
            )
            notes.append(f"not kept of {self.like.name}: {reasons}; {command}")
        self.forget()
        files = [self.out, *self.out.rglob("*")]
        size = sum(file.stat().st_size for file in files if file.is_file())
        limit = self.card.options.get("train_rows")
        record = make_record(run, result, size, limit, baselines=self.run.baselines, selection=selection.facts)
        return record | {"out": str(self.out)}, notes


def prepare(
    task: str,
    data: str | Source,
    reading: DataOptions,
    settings: Settings,
    base: str | Base | None = None,
    dtype: str = "float32",
    device: str | None = None,
    out: Path | None = None,
    extra: Source | None = None,
    busy: Busy = lambda _: nullcontext(),
    like: EarlierTraining | None = None,
) -> PreparedRun:
    """Reads the data, loads the base and plans the run.

    Args:
        data: a file, a folder, `hf:dataset[/config]`, or a `Source` in memory.
        base: Hub id or folder, or a loaded base; None is the default base.
        device: None is a GPU if there is one, else the CPU.
        out: the file to write; None is `TASK.safetensors`, or the folder `TASK` if no delta can hold the result.
        extra: labeled rows in memory to train on as well, in place of `reading.more`.
        like: the version whose decision the result repeats; without `out`, no file is replaced: the result is
            TASK-2.safetensors or the next free name.
        busy: makes a context manager from a text such as "loading the base", entered around each slow step.

    Raises:
        OneBertError: a name, an option, the data or the base is refused; nothing is written.
    """
    if out is not None:
        check_writable("--out", out, [Path(data)] if isinstance(data, str) else ())
    check_name(task)
    refuse_steps(settings)
    targets_of(card_of(like.manifest).decide.targets if like else ())  # before the slow work
    with busy(f"reading {data if isinstance(data, str) else data.name}"):
        keep_all = settings.method == HEAD and not (like and card_of(like.manifest).decide.targets)
        dataset = load_dataset(data, reading, keep_few=True, keep_all=keep_all, extra=extra)
    with busy("loading the base"):
        loaded = load_on(base, dtype, device)
    with busy(f"tokenizing {sum(map(len, dataset.splits.values())):,} rows"):
        inputs = TaskInputs(loaded, dataset, settings.max_length)
        inputs.check_targets()
        run = make_run(inputs, read_pairs(inputs, settings, task), task)
    out = out or _default_out(task, run.plan.servable, like is not None)
    _check_result(run, out)
    name = base.spec.name if isinstance(base, Base) else base
    return PreparedRun(run, out, name, repeatable(settings, reading), like)


def _default_out(task: str, servable: bool, beside: bool) -> Path:
    names = (f"{task}{number}{'.safetensors' * servable}" for number in chain([""], (f"-{n}" for n in count(2))))
    return next(path for path in map(Path, names) if not (beside and path.exists()))


def write_result(run: Run, result: Result, out: Path, base: str | None) -> list[str]:
    """Writes the delta file, or a Hugging Face checkpoint if no delta can hold the result; returns notes to show."""
    if result.delta is not None:
        save(out, result.delta)
        return []
    head = {name: tensor for name, tensor in result.differences.items() if name.startswith("head.")}
    kind = write_checkpoint(out, base, merge(result.base, result.differences), head, run.manifest)
    return [f"{run.method.text} changes the base itself, which a delta cannot; {out} is for {kind}"]


def _check_result(run: Run, out: Path) -> None:
    """Refuses, before training, a run whose result could not be written."""
    if run.plan.servable:
        check_writable("--out", out)
        return
    check_free(out)
    if any(trainable.prefix == ADAPTER_DOWN for trainable in run.plan.trainables):
        raise InvalidSettings(f"{run.method.text} gives neither a delta nor a checkpoint that could be written")
    if run.pooling == SIAMESE:
        raise InvalidSettings(
            f"{run.method.text} gives a checkpoint, and none compares two texts: not with --pooling siamese"
        )
