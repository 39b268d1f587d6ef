"""`onebert check`: examines data and shows the findings."""

from collections.abc import Mapping, Sequence
from functools import partial
from shlex import quote
from typing import Any

import numpy as np

from onebert_encoder.base.tokenizer import load_tokenizer
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Text, Tokens, halves_of
from onebert_store.command import console
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import PER_TOKEN
from onebert_store.file.strict_json import printable
from onebert_store.tables.tables import Faults
from onebert_store.tables.writers import write_table
from onebert_training.commands.mending import Mending, mended_facts, mended_lines, rows_by_file
from onebert_training.data.dataset import Dataset
from onebert_training.data.examination import FEW_ROWS, examine
from onebert_training.data.options import DataOptions
from onebert_training.options import Machine
from onebert_training.tasks.reading import reading_notes

_TEXTS = 4096  # texts tokenized at a time
_LABELS = 20  # labels in a table
_EXAMPLES = 5
# Above this share of texts with a letter outside of ASCII, a note says which language the default base knows.
_FOREIGN = 0.1
_ENGLISH = (
    "many texts have letters that English lacks, and the default base knows English: a base for other languages is "
    "--base intfloat/multilingual-e5-small"
)


def run_check(
    data: str, reading: DataOptions, max_length: int, labels: bool, mending: Mending, machine: Machine, as_json: bool
) -> bool:
    """Shows all findings about the data, or its mended copy; returns whether training would accept it."""
    mending.require_output(data)
    tokenizer, longest = load_tokenizer(machine.base)
    max_length = min(max_length, longest)
    with console.busy(f"checking {data}"):
        faults = Faults()
        mended = None if mending.out is None else mending.of(data, reading, faults)
        source = data if mended is None else mended.source
        examination = examine(source, reading, max_length, partial(_lengths, tokenizer), faults)
        if examination.dataset is not None:
            try:
                examination.facts["notes"] += _check_tokens(examination.dataset, tokenizer, max_length)
                if machine.base is None and _are_foreign(examination.dataset.trained_texts):
                    examination.facts["notes"].append(_ENGLISH)
            except InvalidData as error:
                examination.refuse(error.detail)
    if labels and examination.dataset is not None and not examination.facts["refused"]:
        from onebert_training.commands.suspects import suspects_of  # noqa: PLC0415 - imports torch

        examination.facts["suspects"] = suspects_of(examination, max_length, machine)
    facts = {"data": data, "trainable": not examination.facts["refused"], **examination.facts}
    if mended is not None and mending.out is not None:
        write_table(mending.out, mended.table)
        facts["mended"] = mended_facts(mended, mending.out, len(faults.rows))
    if as_json:
        console.print_json(facts)
    else:
        _show(facts)
    return bool(facts["trainable"])


def _lengths(tokenizer: Tokenizer, texts: Sequence[Text]) -> Any:
    """[texts], the length of each text in tokens, with special tokens and without a limit."""
    lengths = np.zeros(len(texts), dtype=np.int64)
    for start in range(0, len(texts), _TEXTS):
        pieces = tokenizer.split(texts[start : start + _TEXTS], 0, placed=False)
        # With no piece kept, `measure` counts the special tokens only.
        for place, text_pieces in enumerate(pieces, start=start):
            lengths[place] = sum(text_pieces.lengths) + tokenizer.measure(text_pieces, ())[0]
    return lengths


def _are_foreign(texts: Sequence[Text]) -> bool:
    """Whether so many texts have letters that English lacks that their language is another one."""
    foreign = sum(
        any(char.isalpha() and not char.isascii() for half in halves_of(text) for char in half) for text in texts
    )
    return foreign > _FOREIGN * len(texts)


def _check_tokens(dataset: Dataset, tokenizer: Tokenizer, max_length: int) -> list[str]:
    encoded = dict[str, Sequence[Tokens]]()
    # Other tasks answer about the text as a whole, so truncation leaves them a target.
    if dataset.task_type in PER_TOKEN:
        from onebert_training.tasks.objectives import OBJECTIVES  # noqa: PLC0415 - imports torch

        objective = OBJECTIVES[dataset.task_type](dataset.labels)
        for name, split in dataset.splits.items():
            tokens = encoded[name] = tokenizer.encode(split.texts, max_length, align=True)
            if not any(map(objective.has_target, objective.targets(split, tokens))):
                raise InvalidData(f"{name} split: the inputs are cut before every answer; allow more tokens")
    return reading_notes(dataset, tokenizer, max_length, encoded.get("train", ()))


def _show(facts: Mapping[str, Any]) -> None:
    for kind in facts.get("files", ()):
        console.say(kind)
    if "task_type" in facts:
        texts = " and ".join(map(printable, facts["text"]))
        console.say(f"{facts['task_type']}: {texts} → {printable(facts['label'])}")
    splits = facts.get("splits", {})
    if splits:
        _show_lengths(splits, facts)
        _show_labels(splits)
    for line in [*_lines(facts), *mended_lines(facts.get("mended"))]:
        console.say(line)
    if "suspects" in facts:
        from onebert_training.commands.suspects import show_suspects  # noqa: PLC0415 - imports torch

        show_suspects(facts["suspects"])
    for note in facts["notes"]:
        console.say(f"note: {note}")
    for why in facts["refused"]:
        console.say(f"refused: {why}")
    if facts["trainable"]:
        console.say("`onebert train` takes this data")
        doubtful = facts["task_type"] == "single_label" and facts["contradictions"]["texts"] > 0
        if doubtful and "suspects" not in facts:
            console.say("the same with --labels lists rows whose label may be wrong")
            console.say(f"next: onebert check {quote(str(facts['data']))} --labels")


def _show_lengths(splits: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    columns = ("rows", "median", "90 %", "99 %", "longest", "cut")
    rows = []
    for name, split in splits.items():
        tokens = split["tokens"]
        sizes = [f"{tokens[key]:,}" if tokens else "" for key in ("median", "p90", "p99", "longest", "cut")]
        rows.append((name, f"{facts['rows'][name]:,}", *sizes))
    console.show(("split", *columns), rows, numbers=columns)
    if longest := next((split["tokens"]["max_length"] for split in splits.values() if split["tokens"]), 0):
        console.say(f"(lengths in tokens; cut: texts of more than {longest})")


def _show_labels(splits: Mapping[str, Any]) -> None:
    if numbers := splits["train"].get("numbers"):
        console.say("numbers: " + ", ".join(f"{name} {value}" for name, value in numbers.items()))
    counts = splits["train"].get("labels", {})
    if not any(counts.values()):
        return
    first = sorted(counts, key=lambda name: -counts[name])[:_LABELS]
    rows = [(printable(name), *(f"{split['labels'].get(name, 0):,}" for split in splits.values())) for name in first]
    console.show(("label", *splits), rows, numbers=[*splits])
    if len(counts) > _LABELS:
        console.say(f"and {len(counts) - _LABELS:,} more labels")


def _lines(facts: Mapping[str, Any]) -> list[str]:
    without = {name: split.get("without", 0) for name, split in facts.get("splits", {}).items()}
    twice = facts.get("duplicates", {})
    lines = [f"rows of {split} without any of the labels: {rows:,}" for split, rows in without.items() if rows]
    lines += [f"rows of {split} that repeat another: {rows:,}" for split, rows in twice.items() if rows]
    if (torn := facts.get("contradictions", {})).get("texts"):
        lines.append(f"texts with different answers: {torn['texts']:,}: {'; '.join(torn['first'][:_EXAMPLES])}")
    for leak in facts.get("leaks", ()):
        some = "; ".join(leak["first"][:_EXAMPLES])
        lines.append(f"rows of {leak['split']} with a text of {leak['of']}: {leak['rows']:,}: {some}")
    if few := facts.get("few"):
        some = ", ".join(f"{printable(name)} ({count})" for name, count in list(few.items())[:_EXAMPLES])
        lines.append(f"labels with fewer than {FEW_ROWS} training rows: {len(few):,}: {some}")
    bad = facts["bad"]
    lines += [f"bad: {line}" for line in rows_by_file(bad["first"], lambda row: str(row["what"]))]
    if (rest := bad["rows"] - len(bad["first"])) > 0:
        lines.append(f"bad: and {rest:,} more rows")
    return lines
