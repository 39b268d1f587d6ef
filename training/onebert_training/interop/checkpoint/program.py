"""Asks the program that people run on a checkpoint for its logits, so that a delta is held against nothing of ours."""

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, pipeline

from onebert_encoder.base.base import has_tokenizer
from onebert_encoder.base.quiet import quiet
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Text, Tokens, halves_of, named_halves
from onebert_store.errors import InvalidInput, NotFinite
from onebert_store.file.manifest import TaskType
from onebert_training.interop.checkpoint.finetuned import answer_all
from onebert_training.interop.checkpoint.search import ModelLogits
from onebert_training.interop.heads import AUTO_CLASSES, Kind, WithHead, kind_of

_TASKS = {"sequence": "text-classification", "token": "token-classification"}
_PROGRAMS = {kind: f'pipeline("{task}")' for kind, task in _TASKS.items()} | {"span": AUTO_CLASSES["span"]}


def ask_program(
    folder: Path, model: Any, tokenizer: Tokenizer, texts: Sequence[Text], task_type: TaskType, max_length: int
) -> tuple[ModelLogits, str]:
    """A checkpoint's logits for texts, and the name and release of the program that gave them.

    Args:
        folder: a checkpoint whose `read_settings` have passed.
        model: the folder's model in transformers.
        max_length: in tokens; the program cuts there.

    Raises:
        InvalidInput: the program does not run on the folder, or splits words otherwise than the folder's tokenizer.
        NotFinite: an answer contains NaN or infinity.
    """
    kind = kind_of(task_type)
    tokens = tokenizer.encode(texts, max_length, kind != "sequence")
    if not isinstance(model, WithHead):
        read, program = tokens, AUTO_CLASSES[kind]
        if has_tokenizer(folder):
            read, program = _read_as_callers(folder, model, texts, kind, max_length), _PROGRAMS[kind]
        other = sum(a.input_ids != b.input_ids for a, b in zip(read, tokens, strict=True))
        if other and kind != "sequence":
            raise InvalidInput(f"{program} splits {other:,} of {len(texts):,} texts otherwise than is done here")
        return ModelLogits(tokens, answer_all(model, read)), f"{program} of transformers {version('transformers')}"
    if find_spec("sentence_transformers") is None:
        unproven = "this program's reading of the folder (sentence-transformers is not installed)"
        return ModelLogits(tokens, answer_all(model, tokens)), unproven
    logits = _encode(folder, texts, max_length)
    return ModelLogits(tokens, list(logits)), f"SentenceTransformer.encode {version('sentence-transformers')}"


def _encode(folder: Path, texts: Sequence[Text], max_length: int) -> np.ndarray[Any, Any]:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - slow, and need not be installed

    try:
        with quiet():
            model = SentenceTransformer(
                str(folder),
                device="cpu",
                local_files_only=True,
                model_kwargs={"dtype": "float32", "use_safetensors": True},
            )
            model.max_seq_length = max_length
            logits = model.encode(list(texts), show_progress_bar=False)
    except Exception as error:  # a damaged folder can raise anything in a third party's loader
        raise InvalidInput(f"SentenceTransformer does not run the checkpoint: {type(error).__name__}") from None
    if not np.isfinite(logits).all():
        raise NotFinite("an answer of the checkpoint is not a finite number")
    return np.asarray(logits, np.float32)


def _read_as_callers(folder: Path, model: Any, texts: Sequence[Text], kind: Kind, max_length: int) -> list[Tokens]:
    """The tokens that transformers' pipeline makes of the texts, or its tokenizer where it has no pipeline."""
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), config=model.config, local_files_only=True)
            tokenizer.model_max_length = max_length
            if kind == "span":
                read = [tokenizer(*halves_of(text), truncation="only_second", return_tensors="pt") for text in texts]
            else:
                ask = pipeline(_TASKS[kind], model=model, tokenizer=tokenizer, device="cpu")
                if kind == "sequence":
                    read = [ask.preprocess(named_halves(text), truncation=True) for text in texts]
                else:
                    read = [next(iter(ask.preprocess(text, is_split_into_words=False))) for text in texts]
    except Exception as error:  # as above
        raise InvalidInput(f"transformers' pipeline does not read the texts: {type(error).__name__}") from None
    return [_tokens(each) for each in read]


def _tokens(read: Any) -> Tokens:
    ids = read["input_ids"][0].tolist()
    return Tokens(ids, read["token_type_ids"][0].tolist() if "token_type_ids" in read else [0] * len(ids))
