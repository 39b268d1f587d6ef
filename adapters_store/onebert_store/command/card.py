"""Writes a Hugging Face model card from a delta file; every text in a manifest is untrusted, so it is escaped."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from onebert_store.command.inspection import count_parameters, flat, measured_on
from onebert_store.command.markdown import plain, table
from onebert_store.errors import InvalidInput
from onebert_store.file.decision import Decision
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import TaskType
from onebert_store.file.strict_json import shown
from onebert_store.registry.names import check_name

MOST_LABELS = 100

_PIPELINES: Mapping[TaskType, str] = {
    "single_label": "text-classification",
    "multi_label": "text-classification",
    "regression": "text-classification",
    "token": "token-classification",
    "span": "question-answering",
}
_ANSWERS: Mapping[TaskType, str] = {
    "single_label": "one label of a text, with the probability of each",
    "multi_label": "any number of labels of a text, with the probability of each",
    "regression": "a number for a text",
    "token": "a label for every word of a text",
    "span": "where in a context the answer to a question is",
}
# OneBERT's metric names -> the Hub's, if they differ.
_HUB_METRICS: Mapping[str, str] = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "entity_f1": "f1",
    "entity_precision": "precision",
    "entity_recall": "recall",
    "token_accuracy": "accuracy",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "r2": "r_squared",
}
_SPLITS = ("validation", "test")
_YARDSTICKS = {"constant": "an answer that never changes", "head": "an exact head alone on the frozen base"}
# Entries of `training` that have a section of their own.
_ELSEWHERE = ("task", "data", "metric", "yardsticks", "warnings", "folds", "calibration", *_SPLITS)


def render_card(delta: Delta, file: str, file_bytes: int, task: str | None = None) -> str:
    """Returns the card, YAML first.

    `file` is the name that the card's reader knows, `file_bytes` its size. Without `task` the card takes the task that
    the file was trained for, or the file's name without its ending.
    """
    facts = _Facts(delta, file, file_bytes, task)
    sections = ("# " + plain(facts.task), *facts.sections())
    return f"---\n{facts.front_matter().to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n"


class _Facts:
    def __init__(self, delta: Delta, file: str, file_bytes: int, task: str | None) -> None:
        self.delta, self.manifest, self.file, self.file_bytes = delta, delta.manifest, file, file_bytes
        self.training = delta.manifest.training
        said = self.training.get("task")
        trained_for = said if isinstance(said, str) and _passes(check_name, said) else None
        self.task = task or trained_for or file.removesuffix(".safetensors")
        self.data, self.calibration = (_dict(self.training.get(name)) for name in ("data", "calibration"))
        self.metric = self.training.get("metric")
        self.decision = self.manifest.decision or Decision.model_construct()
        self.pairs = self.manifest.task_type != "span" and self.data.get("pairs") is True

    def front_matter(self) -> ModelCardData:
        """Makes the metadata that the Hub reads; without a license, because a delta file has none."""
        base, data = self.manifest.base.name, self.data.get("name")
        results = list(self.results())
        return ModelCardData(
            base_model=base if _passes(validate_repo_id, base) else None,
            # A name without an owner is usually a file or a folder; on the Hub it would be somebody else's data.
            datasets=[data] if isinstance(data, str) and "/" in data and _passes(validate_repo_id, data) else None,
            library_name="onebert",
            metrics=list(dict.fromkeys(one.metric_type for one in results)) or None,
            model_name=shown(self.task),
            eval_results=results or None,
            pipeline_tag=_PIPELINES[self.manifest.task_type],
            tags=["onebert"],
        )

    def results(self) -> Iterator[EvalResult]:
        name = self.data.get("name")
        if not isinstance(name, str):
            return
        for split in _SPLITS:
            for metric, value in self.scores(split).items():
                yield EvalResult(
                    task_type=_PIPELINES[self.manifest.task_type],
                    dataset_type=shown(name),
                    dataset_name=shown(name),
                    dataset_split=measured_on(self.training, split),
                    metric_type=shown(_HUB_METRICS.get(metric, metric)),
                    metric_name=shown(metric),
                    metric_value=value,
                )

    def scores(self, split: str) -> dict[str, float]:
        numbers = _numbers(self.training.get(split))
        return {name: numbers[name] for name in sorted(numbers, key=lambda name: name != self.metric)}

    def sections(self) -> Iterator[str]:
        base, answers = plain(self.manifest.base.name), _ANSWERS[self.manifest.task_type]
        if self.pairs:
            answers = answers.replace("a text", "a pair of texts")
        yield f"A OneBERT delta: with the frozen encoder {base}, which many tasks share, it answers {answers}."
        # Thresholds and positive labels stand beside their labels.
        rest = self.decision.model_dump(exclude_none=True, exclude={"thresholds", "positives"})
        bodies = {
            "What it is": table(("", ""), self.identity()),
            "How to use it": self.usage(),
            "Labels": self.labels(),
            "Training data": _pairs(self.data),
            "Settings": _pairs({k: v for k, v in self.training.items() if k not in _ELSEWHERE}),
            "Scores": self.measured(),
            "How answers are decided": _pairs(rest, exact=True),
            "Calibration": _pairs(self.calibration),
            "Limitations": "\n".join(f"- {line}" for line in self.limitations()),
        }
        yield from (f"## {title}\n\n{body}" for title, body in bodies.items() if body)

    def identity(self) -> Iterator[tuple[str, str]]:
        manifest = self.manifest
        parameters = count_parameters(self.delta)
        yield "task type", plain(manifest.task_type)
        yield "base", f"{plain(manifest.base.name)} ({plain(manifest.base.model_type)}), `{manifest.base.digest}`"
        yield "method", plain(manifest.method)
        yield "reads", f"{manifest.max_length} tokens, pooling {manifest.pooling}"
        yield "numbers", f"{parameters['delta']:,} in the delta, {parameters['head']:,} in the head"
        yield "file", f"{self.file_bytes:,} bytes, `{self.delta.digest}`"

    def usage(self) -> str:
        base, task = self.manifest.base.name, shlex.quote(shown(self.task))
        asked = '--pair "a text" "another text"' if self.pairs else '"a text"'
        if self.manifest.task_type == "span":
            asked = '--pair "the question" "the context"'
        commands = (
            f"onebert serve --base {shlex.quote(shown(base, 256))}",
            f"onebert push {shlex.quote(shown(self.file, 256))} --task {task}",
            f"onebert classify {task} {asked}",
        )
        return "\n".join(("```bash", *commands, "```"))

    def labels(self) -> str:
        labels, more = self.manifest.labels[:MOST_LABELS], len(self.manifest.labels) - MOST_LABELS
        columns = {"label": [plain(label) for label in labels]}
        if thresholds := self.decision.thresholds:
            columns["threshold"] = [str(thresholds.get(label, "")) for label in labels]
        if positives := self.decision.positives:
            columns["positive"] = ["yes" if label in positives else "" for label in labels]
        rest = f"\n\nAnd {more:,} more." if more > 0 else ""
        return table(list(columns), zip(*columns.values(), strict=True)) + rest

    def measured(self) -> str:
        scores = {split: found for split in _SPLITS if (found := self.scores(split))}
        if not scores:
            return ""
        rows = [
            [
                plain(metric) + " (decides)" * (metric == self.metric),
                *(_score(found, metric) for found in scores.values()),
            ]
            for metric in dict.fromkeys(name for found in scores.values() for name in found)
        ]
        rows += [
            [f"{plain(str(self.metric))} of {words}", *(_score(found, split) for split in scores)]
            for words, found in self.yardsticks()
        ]
        return table(("", *(measured_on(self.training, split) for split in scores)), rows)

    def yardsticks(self) -> Iterator[tuple[str, dict[str, float]]]:
        said = _dict(self.training.get("yardsticks"))
        for name, words in _YARDSTICKS.items():
            if isinstance(said.get(name), dict):
                yield words, _numbers(said[name])

    def of_calibration(self) -> Iterator[str]:
        if self.manifest.task_type == "regression" or self.decision.temperature is not None:
            return
        if _dict(self.calibration.get("temperature")).get("calibrated") is True:
            yield "Its probabilities are uncorrected: on the rows of its calibration no temperature was better."
        else:
            yield "Nothing in the file says that its probabilities are calibrated."

    def limitations(self) -> Iterator[str]:
        manifest = self.manifest
        yield "It works on the base with the digest above and on no other."
        if self.decision.window is None:
            yield f"Of a text of over {manifest.max_length} tokens the end is not read, unless windows are asked for."
        if manifest.task_type in ("single_label", "token") and self.decision.abstain is None:
            yield "It answers one of its labels, also to texts that none of them fits."
        yield from self.of_calibration()
        if not any(self.scores(split) for split in _SPLITS):
            yield "The file holds no scores."
        warnings = self.training.get("warnings")
        for warning in warnings if isinstance(warnings, list) else ():
            yield f"The trainer says: {plain(str(warning))}"


def _pairs(values: Mapping[str, Any], exact: bool = False) -> str:
    rows = [(plain(name), plain(value)) for name, value in flat(dict(values), exact=exact)]
    return table(("", ""), rows) if rows else ""


def _score(scores: Mapping[str, float], name: str) -> str:
    return f"{scores[name]:.4f}" if name in scores else ""


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _numbers(value: Any) -> dict[str, float]:
    found = {name: one for name, one in _dict(value).items() if isinstance(one, int | float)}
    return {name: one for name, one in found.items() if not isinstance(one, bool) and math.isfinite(one)}


def _passes(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except (InvalidInput, HFValidationError):
        return False
    return True
