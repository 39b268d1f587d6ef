"""Python snippets that load and query an exported folder, shown after an export."""

from collections.abc import Mapping
from pathlib import Path

from onebert_encoder.answering.scores import own_activation
from onebert_store.file.decision import Activation
from onebert_store.file.manifest import Manifest
from onebert_training.interop.heads import AUTO_CLASSES
from onebert_training.interop.sentence import LOADS_WITH

ONNX = "onnxruntime"

_PIPELINE = """\
from transformers import pipeline

ask = pipeline("{task}", {folder!r}, {options})
print(ask({text!r}))"""

_SENTENCE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({folder!r}, local_files_only=True)
logits = model.encode([{text}], convert_to_tensor=True)
print(model[0].model.config.id2label, {scores})"""

_SPAN = """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder!r})
tokens = tokenizer({text}, truncation="only_second", return_tensors="pt")
found = AutoModelForQuestionAnswering.from_pretrained({folder!r})(**tokens)
first, last = found.start_logits.argmax(), found.end_logits.argmax()
print(tokenizer.decode(tokens["input_ids"][0, first : last + 1]))"""

_ONNX = """\
from onnxruntime import InferenceSession
from transformers import AutoTokenizer

tokens = AutoTokenizer.from_pretrained({folder!r})({text}, truncation={truncation}, return_tensors="np")
session = InferenceSession({model!r})
print(session.run(None, {{each.name: tokens[each.name] for each in session.get_inputs()}}))"""

_SCORES: Mapping[Activation, str] = {"softmax": "logits.softmax(-1)", "sigmoid": "logits.sigmoid()", "none": "logits"}


def example(loads_with: str, folder: Path, manifest: Manifest) -> str:
    """Python that loads the exported folder with a transformers class, `SentenceTransformer` or `onnxruntime`."""
    text, span = repr("The soup was cold."), manifest.task_type == "span"
    if span:
        text = repr("What was cold?") + ", " + text
    where = {"folder": str(folder), "text": text}
    if loads_with == ONNX:
        truncation = repr("only_second") if span else "True"
        return _ONNX.format(**where, model=str(folder / "model.onnx"), truncation=truncation)
    if loads_with == LOADS_WITH:
        return _SENTENCE.format(**where, scores=_SCORES[own_activation(manifest)])
    if span:
        return _SPAN.format(**where)
    token = loads_with == AUTO_CLASSES["token"]
    task, options = (
        ("token-classification", 'aggregation_strategy="simple"')
        if token
        else ("text-classification", "top_k=None, truncation=True")
    )
    return _PIPELINE.format(task=task, folder=str(folder), options=options, text="The soup was cold.")
