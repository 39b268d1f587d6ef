"""The Open Inference Protocol (V2) over HTTP, for clients of Triton and KServe; tensors.py encodes its tensors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from onebert_encoder.answering.results import Prediction
from onebert_encoder.text.tokens import Text as Input
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import TINY_NUMBERS, Answered
from onebert_server.facades.clients import models
from onebert_server.facades.clients.kserve import prediction, worded
from onebert_server.facades.clients.tensors import Tensor, flat, read_body, reply
from onebert_server.facades.facade import Call, Facade, Listing, Question, ReadRequest, json_reply
from onebert_server.http.decoding import Natural, Positive, QuestionBody, converted
from onebert_server.http.formats import Reply
from onebert_server.http.schemas.questions import Text
from onebert_server.limits import MAX_ITEMS
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput

# Triton's clients send no Content-Type.
MEDIA_TYPES = frozenset({"application/json", "application/octet-stream", ""})
EXTENSIONS = ("binary_tensor_data", "classification")


class InputTensor(QuestionBody):
    """Texts, in a tensor of one dimension or of one column."""

    name: Annotated[str, Meta(max_length=64)]
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=MAX_ITEMS)]], Meta(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    data: list[Any]
    parameters: Annotated[dict[str, Any], Meta(max_length=0)] | None = None


class OutputParameters(QuestionBody):
    """How an output is wanted."""

    binary_data: bool | None = None
    classification: Annotated[Positive | None, Meta(description="so many scores, best first, with labels")] = None


class Output(QuestionBody):
    """One output that is wanted."""

    name: Annotated[str, Meta(max_length=64)]
    parameters: OutputParameters | None = None


class Parameters(QuestionBody):
    """Parameters of the whole request."""

    binary_data_output: bool | None = None
    # The queue always takes turns between principals.
    priority: Annotated[Natural | None, Meta(description="changes nothing")] = None
    timeout: Annotated[Natural | None, Meta(description="microseconds, from arrival, in which to answer (0: any)")] = (
        None
    )


class _Data(QuestionBody):
    data: Annotated[list[Text], Meta(min_length=1, max_length=MAX_ITEMS)]


class Infer(QuestionBody):
    """One tensor of texts, or two, `text` and `text_pair`."""

    inputs: Annotated[list[InputTensor], Meta(min_length=1, max_length=2)]
    id: Annotated[str, Meta(max_length=128)] | None = None
    outputs: Annotated[list[Output], Meta(min_length=1, max_length=4)] | None = None
    parameters: Parameters | None = None
    # KServe's clients repeat the path's model name.
    model_name: Any = None

    def questions(self) -> list[Input]:
        columns = [_texts_of(tensor, index) for index, tensor in enumerate(self.inputs)]
        if len(columns) == 1:
            return list(columns[0])
        named = dict(zip((tensor.name for tensor in self.inputs), columns, strict=True))
        if named.keys() != {"text", "text_pair"} or len(columns[0]) != len(columns[1]):
            raise InvalidInput("two inputs are text and text_pair, of the same size")
        return list(zip(named["text"], named["text_pair"], strict=True))


def _texts_of(tensor: InputTensor, index: int) -> list[str]:
    if len(tensor.shape) == 2 and tensor.shape[1] != 1:
        raise InvalidInput(f"inputs.{index}.shape is [n] or [n, 1]")
    return converted(_Data, {"data": flat(tensor.data, tensor.shape)}, "inputs", index).data


async def infer(call: Call[Infer]) -> Reply:
    """Returns the requested outputs, or all, of one task for each text."""
    questions, parameters = call.body.questions(), call.body.parameters or Parameters()
    ref = replace(call, parameters=versioned(call.parameters)).task()
    # A timeout of 0 means no timeout.
    async with call.in_time((parameters.timeout or 0) / 1000 or None) as timed:
        results = await timed.ask(Wanted([ref] * len(questions)), questions, lambda _, answered: answered)
    facts = results[0].facts

    def build(_: slice) -> list[Reply]:
        all_of_it = {tensor.name: tensor for tensor in _tensors(results)}
        outputs = call.body.outputs or [Output(name=name) for name in all_of_it]
        tensors = [_as_wanted(all_of_it, output, facts) for output in outputs]
        choices = (output.parameters and output.parameters.binary_data for output in outputs)
        binary = [bool(parameters.binary_data_output if choice is None else choice) for choice in choices]
        head = {"model_name": facts.task, "model_version": str(facts.version)}
        return [reply(head if call.body.id is None else {**head, "id": call.body.id}, tensors, binary)]

    # One reply for all answers, so one unit of work. Spans are JSON of unbounded size: count them as large.
    numbers = TINY_NUMBERS + 1 if facts.per_token else len(results) * len(facts.labels)
    [made_of_all] = await call.edge.answerer.workers.run(call.context.principal.name, [numbers], build)
    return made_of_all


def versioned(parameters: Mapping[str, str]) -> dict[str, str]:
    """Folds a path's version into its model: `…/models/name/versions/3` means `name@3`."""
    fields = dict(parameters)
    if version := fields.pop("version", None):
        if "@" in fields["model"]:
            raise InvalidInput("the path names a version twice")
        fields["model"] += f"@{version}"
    return fields


def _tensors(answered: Sequence[Answered]) -> list[Tensor]:
    count = [len(answered)]
    readings = [result.read() for result in answered]
    truncated = Tensor("truncated", "BOOL", count, [reading.truncated for reading in readings])
    predictions = [reading.answer for reading in readings if isinstance(reading.answer, Prediction)]
    if not predictions:
        # Spans are ragged, so each text's spans are one JSON string.
        texts = [json.dumps(prediction(result), ensure_ascii=False) for result in answered]
        return [Tensor(_text_output_of(answered[0].facts), "BYTES", count, texts), truncated]
    scores = np.stack([prediction.scores for prediction in predictions]).astype(np.float32)
    labels = [prediction.label for prediction in predictions]
    shape = list(scores.shape)
    return [
        Tensor("scores", "FP32", shape, scores.ravel().tolist()),
        Tensor("label", "BYTES", count, labels),
        truncated,
    ]


def _text_output_of(facts: Facts) -> str:
    return "answers" if facts.task_type == "span" else "entities"


def _as_wanted(tensors: Mapping[str, Tensor], output: Output, facts: Facts) -> Tensor:
    if output.name not in tensors:
        raise InvalidInput(f"the outputs of {facts.ref} are {', '.join(tensors)}")
    tensor, best = tensors[output.name], output.parameters and output.parameters.classification
    if best is None:
        return tensor
    if tensor.name != "scores":
        raise InvalidInput("classification is of scores")
    rows = np.array(tensor.data).reshape(tensor.shape)
    best = min(best, rows.shape[1])
    data = [
        f"{row[index]:f}:{index}:{facts.labels[index]}"
        for row in rows
        for index in np.argsort(-row, kind="stable")[:best].tolist()
    ]
    return Tensor(tensor.name, "BYTES", [len(rows), best], data)


async def server(request: ReadRequest) -> Reply:
    """The name, version and extensions of the server."""
    return json_reply({"name": "onebert", "version": "2", "extensions": EXTENSIONS})


async def live(request: ReadRequest) -> Reply:
    """The process lives."""
    request.runtime.check_health()
    return json_reply({"live": True})


async def ready(request: ReadRequest) -> Reply:
    """The server answers."""
    request.runtime.check_ready()
    return json_reply({"ready": True})


async def model(request: ReadRequest) -> Reply:
    """The inputs and outputs of a task."""
    facts = (await replace(request, parameters=versioned(request.parameters)).version()).facts
    pair = [{"name": "text_pair", "datatype": "BYTES", "shape": [-1]}]
    per_text = [
        {"name": "scores", "datatype": "FP32", "shape": [-1, len(facts.labels)]},
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
    ]
    stretches = [{"name": _text_output_of(facts), "datatype": "BYTES", "shape": [-1]}]
    return json_reply(
        {
            "name": facts.task,
            "versions": [str(facts.version)],
            "platform": "onebert",
            "inputs": [
                {"name": "text", "datatype": "BYTES", "shape": [-1]},
                *(pair if facts.task_type == "span" else []),
            ],
            "outputs": [
                *(stretches if facts.per_token else per_text),
                {"name": "truncated", "datatype": "BOOL", "shape": [-1]},
            ],
        }
    )


async def model_ready(request: ReadRequest) -> Reply:
    """Whether a task answers."""
    return await models.model(replace(request, parameters=versioned(request.parameters)))


_MODEL, _VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"

FACADE = Facade(
    "Open Inference Protocol",
    worded,
    [
        Question(f"{path}/infer", Infer, infer, dict[str, Any], read=read_body, media_types=MEDIA_TYPES)
        for path in (_MODEL, _VERSION)
    ],
    [
        Listing("/v2", server),
        Listing("/v2/health/live", live),
        Listing("/v2/health/ready", ready),
        *(Listing(path, model) for path in (_MODEL, _VERSION)),
        *(Listing(f"{path}/ready", model_ready) for path in (_MODEL, _VERSION)),
    ],
)
