"""ONNX Runtime with merged tasks: exported, fused by its transformers optimizer, and quantized for int8.

Argument: the name of an entry.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model

from merged import Forward, fastest, in_turns, load_model, pad
from worker import Job, Run, serve


def one(job: Job) -> Run:
    """One session, of the job's first task."""
    return fastest(job, session(job, job.tasks[0]))


def swapped(job: Job) -> Run:
    """A session for each task."""
    return in_turns(job, [session(job, file) for file in job.tasks])


def session(job: Job, file: str) -> Forward:
    """A `Forward` of one task."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    loaded = onnxruntime.InferenceSession(str(exported(job, file)), options, providers=["CPUExecutionProvider"])

    def forward(chosen: Sequence[int]) -> np.ndarray:
        return loaded.run(["logits"], pad(job, chosen))[0]

    return forward


def exported(job: Job, file: str) -> Path:
    """The model file for a task and dtype, made once."""
    version = f"{onnxruntime.__version__} {torch.__version__}"
    key = hashlib.sha256(version.encode() + Path(file).read_bytes()).hexdigest()[:16]
    plain, fused, int8 = (Path(job.work) / f"onnx-{key}-{kind}.onnx" for kind in ("plain", "float32", "int8"))
    if not fused.exists():
        model, names = load_model(replace(job, dtype="float32"), file), list(pad(job, [0]))
        example = (torch.ones(2, 8, dtype=torch.int64),) * len(names)
        axes = {name: {0: "sequences", 1: "length"} for name in names} | {"logits": {0: "sequences"}}
        torch.onnx.export(
            model, example, plain, input_names=names, output_names=["logits"], dynamic_axes=axes, dynamo=False
        )
        config, fusion = model.config, FusionOptions("bert")
        optimize_model(
            str(plain), "bert", config.num_attention_heads, config.hidden_size, optimization_options=fusion
        ).save_model_to_file(str(fused))
        plain.unlink()
    if job.dtype == "int8" and not int8.exists():
        # Quantized by channel. Without VNNI sums may overflow, against which ONNX Runtime advises weights of 7 bits.
        quantize_dynamic(
            fused,
            int8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=not has_vnni(),
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    return int8 if job.dtype == "int8" else fused


def has_vnni() -> bool:
    """Whether the processor has VNNI, instructions that add products of bytes in 32 bits."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def prepare(job: Job) -> Run:
    return swapped(job) if sys.argv[1] == "onnx_swapped" else one(job)


serve(prepare)
