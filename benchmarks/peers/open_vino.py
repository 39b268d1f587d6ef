"""OpenVINO on CPU with one merged task, in bfloat16 by its precision hint."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import openvino
import openvino.properties as props
import torch
from openvino.properties import hint

from merged import fastest, load_model, pad
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    model = load_model(replace(job, dtype="float32"), job.tasks[0])
    example = {name: torch.ones(2, 8, dtype=torch.int64) for name in pad(job, [0])}
    converted = openvino.convert_model(model, example_input=example)
    compiled = openvino.compile_model(
        converted,
        "CPU",
        {
            hint.inference_precision: {"float32": "f32", "bfloat16": "bf16"}[job.dtype],
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            props.inference_num_threads: job.threads,
        },
    )
    request = compiled.create_infer_request()

    def forward(chosen: Sequence[int]) -> np.ndarray:
        return request.infer(pad(job, chosen), share_inputs=True)["logits"].copy()

    return fastest(job, forward)


serve(prepare)
