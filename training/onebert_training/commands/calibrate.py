"""`onebert calibrate`: measures a delta, fits its decision, and writes a delta with the same tensors."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from onebert_encoder.base.base import Base
from onebert_encoder.text.tokens import Tokens
from onebert_store.command import console
from onebert_store.disk import check_writable
from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.file.card import card_of
from onebert_store.file.delta import Delta, require_fit
from onebert_store.file.fingerprint import overlap_of
from onebert_store.file.format import load, save
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import printable
from onebert_store.tables.columns import trained_columns
from onebert_store.tables.tables import Source
from onebert_training.commands.showing import abstaining_rule, percent, thresholds_line, unknown_rows
from onebert_training.data.dataset import digest_of, load_split, load_texts
from onebert_training.data.examples import Split
from onebert_training.data.options import ReadOptions
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.fit.reference import reference_of, with_reference
from onebert_training.fit.temperature import gold_flags, temperature_folds
from onebert_training.insight.calibration import Calibrated, Target, calibrate, check_task, targets_of
from onebert_training.insight.decided import MEASURED, decide_after, remeasured, with_decision
from onebert_training.insight.evaluated import is_split, truncation_notes
from onebert_training.insight.fixed_rules import FixedRules, fixed_rules
from onebert_training.insight.intervals import CONFIDENCE, Floats
from onebert_training.options import Machine

MOST_LABELS = 20  # the most labels in a table


@dataclass(frozen=True)
class Rules:
    """The properties of a decision: rates that are fitted to rows, and what the user states of the labels."""

    targets: Sequence[str] = ()
    thresholds: Sequence[str] = ()
    positive: str | None = None

    def parsed(self) -> list[Target]:
        """The targets; raises InvalidSettings for what contradicts itself."""
        targets = targets_of(self.targets)
        if self.thresholds and not all(target.is_coverage for target in targets):
            raise InvalidSettings(
                "--threshold states the thresholds that --target fpr or precision would fit: give one"
            )
        return targets


def run_calibrate(
    file: Path,
    data: str | None,
    split: str | None,
    reading: ReadOptions,
    rules: Rules,
    unknown: str | None,
    out: Path | None,
    machine: Machine,
    as_json: bool,
) -> None:
    """Writes a delta's better decision, by labeled rows or as stated, as a new file, and shows the measurements."""
    targets = rules.parsed()
    if data is None and (targets or unknown or split or reading != ReadOptions()):
        raise InvalidSettings("only --threshold and --positive need no rows: give --data")
    if data is None and not rules.thresholds and rules.positive is None:
        raise InvalidSettings("give --data to fit to, or --threshold or --positive")
    delta = load(file)
    if data is not None:
        check_task(delta.manifest)
    fixed = fixed_rules(rules.thresholds, rules.positive, delta.manifest)
    out = out or file.with_name(f"{file.stem}-calibrated.safetensors")
    check_writable("--out", out, [Path(path) for path in (data, unknown) if path is not None])
    console.note_replaced(out, "if the calibration changes the decision")
    if data is None:
        decision, notes = fixed.decided(delta.manifest)
        calibrated = Calibrated(decision.model_dump(exclude_none=True) if decision else {}, notes=notes)
        facts: dict[str, Any] = {"stated": fixed.facts}
        decide = decide_after(card_of(delta.manifest).decide, [], bool(fixed.thresholds))
        new_delta = with_decision(delta, calibrated.decision, facts, decide)
    else:
        calibrated, facts, new_delta = _fitted(delta, data, split, reading, targets, fixed, unknown, machine)
    if new_delta is not None:
        save(out, new_delta)
    record = {
        "file": str(file),
        "digest": delta.digest,
        **facts,
        "decision": calibrated.decision or None,
        "notes": calibrated.notes,
        "out": None if new_delta is None else {"file": str(out), "digest": new_delta.digest},
    }
    if as_json:
        console.print_json(record)
    else:
        _show(record)


def _fitted(
    delta: Delta,
    data: str,
    split: str | None,
    reading: ReadOptions,
    targets: Sequence[Target],
    fixed: FixedRules,
    unknown: str | None,
    machine: Machine,
) -> tuple[Calibrated, dict[str, Any], Delta | None]:
    """The calibration on labeled rows, its facts, and the delta with the new decision; None if that is unchanged."""
    manifest = delta.manifest
    read = reading.read(data)
    reading = reading.remembering(trained_columns(manifest), read)
    if split is None and "validation" in read.tables:
        split = "validation"
    labeled = load_split(read, reading, manifest.task_type, manifest.labels, split)
    name, examples = labeled.name, labeled.split
    unknown_texts = (
        None if unknown is None else load_texts(unknown, reading.columns, reading.encoding, else_by_name=True)[1]
    )
    loaded = machine.load()
    require_fit(delta, loaded.spec)
    with console.busy(f"classifying {len(examples) + len(unknown_texts or ()):,} texts"):
        tokens = tokenize(loaded, manifest, examples.texts)
        logits = _logits(loaded, delta, tokens)
        unknown_logits = (
            None if unknown_texts is None else _logits(loaded, delta, tokenize(loaded, manifest, unknown_texts))
        )
    with console.busy("calibrating"):
        gold = gold_flags(examples.gold, len(manifest.labels))
        truncated = np.array([text.truncated for text in tokens])
        fold = temperature_folds(examples, manifest.task_type)
        calibrated = calibrate(logits, gold, manifest, targets, unknown_logits, fixed, truncated, fold)
    overlap = overlap_of(manifest, examples.texts)
    calibrated.notes += [*labeled.notes, *overlap.note, *truncation_notes(tokens, manifest)]
    digest = digest_of(manifest.task_type, manifest.labels, {name: examples})
    facts = {"data": {"name": read.name, "digest": digest}, "split": name, "rows": len(examples)}
    facts |= {"trained_on": overlap.rows, **calibrated.facts}
    facts |= {"stated": fixed.facts} if fixed else {}
    decide = decide_after(card_of(manifest).decide, targets, bool(fixed.thresholds))
    new_delta = with_decision(delta, calibrated.decision, facts, decide)
    if new_delta is not None:
        if {*MEASURED} & (manifest.training.keys() - new_delta.manifest.training.keys()):
            new_delta = remeasured(new_delta, loaded, _rows_there(manifest, read, reading))
        reference = reference_of(new_delta.manifest, list(logits), name, tokens, examples.texts)
        new_delta = with_reference(new_delta, reference or new_delta.manifest.reference)
    return calibrated, facts, new_delta


def _logits(base: Base, delta: Delta, tokens: Sequence[Tokens]) -> Floats:
    return np.stack(predict_delta(base, delta, tokens)).astype(np.float64)


def _rows_there(manifest: Manifest, read: Source, reading: ReadOptions) -> dict[str, Split]:
    splits = dict[str, Split]()
    for name in MEASURED:
        if read.single_file or name in read.tables:
            split = None if read.single_file else name
            # Rows without labels, or with others, were not measured.
            with suppress(InvalidData):
                examples = load_split(read, reading, manifest.task_type, manifest.labels, split).split
                splits |= {name: examples} if is_split(manifest, name, examples) else {}
    return splits


def _show(record: Mapping[str, Any]) -> None:
    if "data" in record:
        _show_fit(record)
    if "stated" in record:
        _show_stated(record["decision"])
    for note in record["notes"]:
        console.say(f"note: {note}")
    if record["out"] is None:
        reason = "is as good on these rows" if "data" in record else "has all that already"
        console.say(f"nothing is written: the decision of the delta {reason}")
    else:
        console.say(f"next: onebert push {quote(record['out']['file'])}")


def _show_stated(decision: Mapping[str, Any]) -> None:
    table = console.facts()
    if thresholds := decision.get("thresholds"):
        table.add_row("thresholds", thresholds_line(thresholds))
    if positives := decision.get("positives"):
        table.add_row("positive", ", ".join(printable(label, 40) for label in positives))
    console.out.print(table)


def _show_fit(record: Mapping[str, Any]) -> None:
    table = console.facts()
    if fitted := record.get("temperature"):
        table.add_row("temperature", _temperature(fitted))
    table.add_row("right", f"{percent(record['right'])} of all answers")
    wrong = record["auroc_right"]
    if wrong["probability"] is not None:
        aurocs = f"AUROC by probability {wrong['probability']:.3f}, by energy {wrong['energy']:.3f}"
        table.add_row("right or wrong", aurocs)
    if unknown := record.get("unknown"):
        for row in unknown_rows(unknown):
            table.add_row(*row)
    if abstain := record.get("abstain"):
        table.add_row(f"abstain, {abstain['target']}", abstaining_rule(abstain))
        table.add_row("answered", _rate(abstain["coverage"]))
        table.add_row("right of these", _rate(abstain["right"]))
    console.say(f"{record['split']}: {record['rows']:,} rows")
    console.out.print(table)
    if "thresholds" in record:
        _show_thresholds(record["thresholds"])


def _show_thresholds(facts: Mapping[str, Any]) -> None:
    columns = ("label", "rows", "threshold", "fpr", "precision", "recall")
    labels = facts["labels"]
    rows = [
        (
            printable(label["label"]),
            f"{label['rows']:,}",
            f"{label['threshold']:.4f}",
            *(_rate(label[name]) for name in columns[3:]),
        )
        for label in labels[:MOST_LABELS]
    ]
    rows.append(("all together", "", "", *(_rate(facts["all"][name]) for name in columns[3:])))
    console.out.print(console.title(f"Thresholds for {facts['target']}"))
    console.show(columns, rows, numbers=columns[1:])
    if len(labels) > MOST_LABELS:
        console.say(f"and {len(labels) - MOST_LABELS:,} more labels; --json has them all")
    console.say(f"(on these rows, with the {CONFIDENCE:.0%} interval for as many new rows)")


def _temperature(fitted: Mapping[str, Any]) -> str:
    nll = fitted["nll"]
    gain = f"NLL {nll['before']:.4f} → {nll['after']:.4f} ± {nll['error']:.4f} on rows that it was not fitted on"
    state = f"{fitted['before']:.3f} → {fitted['fitted']:.3f}" if fitted["taken"] else f"stays {fitted['before']:.3f}"
    return f"{state} ({gain})"


def _rate(rate: Mapping[str, Any]) -> str:
    if rate["here"] is None:
        return "–"
    between = "" if rate["low"] is None else f" ({100 * rate['low']:.1f}–{100 * rate['high']:.1f})"
    return percent(rate["here"]) + between
