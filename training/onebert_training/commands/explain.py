"""`onebert explain`: the words behind an answer, and the effect of a delta's layers and symbols."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.scores import tempered
from onebert_encoder.base.base import Base
from onebert_encoder.explaining.layers import Removed, RemovedRows, removals
from onebert_encoder.explaining.texts import TextExplainer
from onebert_encoder.explaining.words import Explanation
from onebert_encoder.maths.fold import to_tensors
from onebert_encoder.text.tokens import Text, Tokens, named_halves
from onebert_store.command import console
from onebert_store.errors import AnswerNotFinite, InvalidData, InvalidInput, NotFinite
from onebert_store.file.delta import Delta, require_fit
from onebert_store.file.format import load
from onebert_store.file.strict_json import printable
from onebert_store.tables.columns import trained_columns
from onebert_store.tables.text.unicode import text_fault
from onebert_training.data.dataset import load_split
from onebert_training.data.options import ReadOptions
from onebert_training.data.splitting import SPLIT_SEED, subset
from onebert_training.fit.features import BATCH_TOKENS, token_batches, tokenize
from onebert_training.insight.evaluated import counted_logits, deciding_metric
from onebert_training.options import Machine
from onebert_training.tasks.objective import Logits, Objective
from onebert_training.tasks.objectives import OBJECTIVES

# The most words or parts shown, those with the largest effects; --json has all.
_SHOWN = 12


class Loaded(NamedTuple):
    """A delta, its base, and the variants of the delta with one part removed."""

    delta: Delta
    base: Base
    removed: list[Removed]

    @property
    def rows(self) -> RemovedRows:
        return RemovedRows(self.base, self.removed, self.delta.manifest)


def _load(file: Path, machine: Machine) -> Loaded:
    delta, loaded = load(file), machine.load()
    require_fit(delta, loaded.spec)
    return Loaded(delta, loaded, removals(to_tensors(delta, loaded), loaded.spec))


def explain_text(file: Path, text: Text, layers: bool, machine: Machine, as_json: bool) -> None:
    """Shows the effects of a text's words on the answer and, with `layers`, of the delta's parts."""
    halves = named_halves(text)
    # An argument with bytes that are not UTF-8 has lone surrogates in their place.
    if why := text_fault(*halves.values()):
        raise InvalidInput(why)
    loaded = _load(file, machine)
    explainer = TextExplainer.for_delta(loaded.base, loaded.delta)
    [prediction] = explainer.answers([text])
    ways = [explainer.by_occlusion(text), explainer.by_gradient(text)]
    read, tokens = explainer.read(text)
    record: dict[str, Any] = {
        "digest": loaded.delta.digest,
        "label": prediction.label,
        "score": prediction.score,
        "tokens": {"read": read, "of": tokens},
        "explanations": [asdict(explanation) for explanation in ways],
    }
    if layers:
        record["removed"] = _removed_for_text(loaded, text, prediction)
    if as_json:
        console.print_json(record)
        return
    console.say(f"{printable(prediction.label)} {prediction.score:.4f}")
    if read < tokens:
        decision = loaded.delta.manifest.decision
        server = "; a server reads all, in windows" if decision and decision.window else ""
        console.say(f"{read} of {tokens} tokens were read; effects are of these{server}")
    _show_words(halves, *ways)
    if layers:
        _show_removed(record["removed"], {"score": "score less without it"})


def _show_words(halves: Mapping[str, str], occlusion: Explanation, gradient: Explanation) -> None:
    both = sorted(zip(occlusion.words, gradient.words, strict=True), key=lambda pair: -abs(pair[0].effect))
    which = {"text": ["first"], "text_pair": ["second"]} if len(halves) > 1 else {"text": []}
    for field in [field for field in halves if field not in {word.field for word, _ in both}]:
        name = " ".join(["the", *which[field], "text"])
        message = f"no word of {name} can be removed: nothing of what was read would remain"
        console.say(message)
    if not both:
        return
    rows = []
    for outer, inner in both[:_SHOWN]:
        word = printable(halves[outer.field][outer.start : outer.end])
        rows.append((*which[outer.field], word, _signed(outer.effect), _signed(inner.effect)))
    console.show([*["text"] * (len(halves) > 1), "word", "score less without it", "gradient × input"], rows)
    _say_more(len(both) - _SHOWN)


def _signed(effect: float) -> str:
    return f"{effect:+z.4f}"  # z: an effect that rounds to 0 has no minus sign


def _say_more(count: int) -> None:
    if count > 0:
        console.say(f"and {count:,} more, which --json has")


def _removed_for_text(loaded: Loaded, text: Text, prediction: Prediction) -> list[dict[str, Any]]:
    """The loss of score of the answer's label without each part of the delta."""
    manifest = loaded.delta.manifest
    tokens = tokenize(loaded.base, manifest, [text])
    parts = []
    for removed, [logits] in zip(loaded.removed, loaded.rows.logits(tokens), strict=True):
        if not logits.isfinite().all():
            raise AnswerNotFinite(f"the answer without {_named(_part(removed))} is not a finite number")
        without = answer(logits.float().cpu().numpy(), manifest)
        if isinstance(without, Prediction) and removed.kind != "whole":
            parts.append(_part(removed) | {"score": prediction.score - float(without.scores[prediction.best])})
    return parts


def explain_data(
    file: Path, data: str, split: str | None, max_rows: int, reading: ReadOptions, machine: Machine, as_json: bool
) -> None:
    """Shows the effect of each layer and symbol of a delta on labeled rows."""
    loaded = _load(file, machine)
    manifest = loaded.delta.manifest
    read = reading.read(data)
    reading = reading.remembering(trained_columns(manifest), read)
    labeled = load_split(read, reading, manifest.task_type, manifest.labels, split)
    name, examples = labeled.name, subset(labeled.split, manifest.task_type, max_rows, SPLIT_SEED)
    objective = OBJECTIVES[manifest.task_type](manifest.labels)
    tokens = tokenize(loaded.base, manifest, examples.texts)
    with console.busy(f"computing {len(examples):,} rows without each of {len(loaded.removed) - 1} parts"):
        logits = _logits(loaded, tokens)
    divided = [
        [tempered(logits_of_row, manifest.decision).astype(np.float32) for logits_of_row in each] for each in logits
    ]
    losses = _losses(objective, objective.targets(examples, tokens), divided)
    counted = [counted_logits(each, manifest, tokens) for each in logits]
    scores = [objective.score(examples, objective.read(examples, tokens, each)) for each in counted]
    decides = deciding_metric(manifest, objective, labeled)
    parts = [
        _part(removed) | {"loss": loss - losses[0], decides: score[decides] - scores[0][decides]}
        for removed, loss, score in zip(loaded.removed, losses, scores, strict=True)
        if removed.kind != "whole"
    ]
    record = {
        "digest": loaded.delta.digest,
        "split": name,
        "rows": len(examples),
        "metric": decides,
        "loss": losses[0],
        decides: scores[0][decides],
        "removed": parts,
    }
    if as_json:
        console.print_json(record)
        return
    of = f"{len(examples):,} rows of {name}"
    console.say(f"{of}: loss {losses[0]:.4f}, {decides} {scores[0][decides]:.4f}")
    _show_removed(parts, {"loss": "loss more without it", decides: f"{decides} more without it"})


def _logits(loaded: Loaded, tokens: Sequence[Tokens]) -> list[list[Logits]]:
    """[parts][inputs] logits without each part; a batch holds some inputs with all parts."""
    rows = loaded.rows
    by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    by_part: list[dict[int, Logits]] = [{} for _ in loaded.removed]
    for chosen in token_batches(by_length, tokens, BATCH_TOKENS // len(loaded.removed)):
        for of_row, each in zip(by_part, rows.logits([tokens[i] for i in chosen]), strict=True):
            of_row.update(zip(chosen, (np.asarray(logits.float().cpu()) for logits in each), strict=True))
    return [[of_row[i] for i in range(len(tokens))] for of_row in by_part]


def _losses(objective: Objective, targets: Sequence[Tensor], logits: Sequence[Sequence[Logits]]) -> list[float]:
    """[parts], the mean loss without each part over the rows that have a target."""
    with_target = [i for i, target in enumerate(targets) if objective.has_target(target)]
    if not with_target:
        raise InvalidData("truncation removes the labels of all rows from the tokens that the delta reads")
    chosen = [targets[i] for i in with_target]
    losses = [float(objective.loss([torch.from_numpy(each[i]) for i in with_target], chosen)) for each in logits]
    if not np.isfinite(losses).all():
        raise NotFinite("a loss is NaN or infinite")
    return losses


def _part(removed: Removed) -> dict[str, Any]:
    return {"kind": removed.kind, "name": removed.name}


def _named(part: dict[str, Any]) -> str:
    return "all that it changes of the base" if part["kind"] == "base" else f"{part['kind']} {part['name']}"


def _show_removed(parts: Sequence[dict[str, Any]], columns: dict[str, str]) -> None:
    first = next(iter(columns))
    order = sorted(parts, key=lambda part: (part["kind"] != "base", -abs(part[first])))
    rows = [(_named(part), *(_signed(part[name]) for name in columns)) for part in order[: 1 + _SHOWN]]
    console.show(("without", *columns.values()), rows)
    _say_more(len(order) - 1 - _SHOWN)
