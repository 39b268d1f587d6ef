"""The options of `onebert.train` for type checkers; a test keeps them equal to the command's."""

from typing import Literal, TypedDict

from onebert_store.file.decision import CutRule
from onebert_store.file.manifest import Pooling, TaskType


class TrainOptions(TypedDict, total=False):
    """Every option of `onebert train` by its name; docs/reference/options.md describes each."""

    method: str
    pooling: Pooling | None
    positive: str | None
    class_weight: Literal["balanced"] | None
    max_length: int
    cut: CutRule
    epochs: int | None
    max_steps: int | None
    batch_size: int
    learning_rate: float | None
    head_learning_rate: float | Literal["same"] | None
    averaging: float
    start: Literal["fresh", "head"] | None
    seed: int
    evals_per_epoch: int
    patience: int
    keep: Literal["last", "best"]
    metric: str | None
    measure_train: bool
    no_fingerprint: bool
    text: str | None
    text_pair: str | None
    label: str | None
    encoding: str | None
    sheet: str | None
    label_separator: str | None
    drop_unlabeled: bool
    drop_empty: bool
    task_type: TaskType | None
    train_rows: int | None
    validation_rows: int | None
    validation_share: float | None
    more: str | None
    new_label_rows: int | None
