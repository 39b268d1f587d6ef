"""Sections on what the device does in a step: its upper bounds, single kernels, a profile."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, profiler
from torch.nn import functional as F

from onebert_bench.gpu.answering import answer_on_host
from onebert_bench.gpu.made import Made, texts
from onebert_bench.report import Cell, Section
from onebert_bench.timing import device_ms
from onebert_bench.workload import BERT_BASE, LORA, bank_of
from onebert_encoder.base.base import Base
from onebert_encoder.compute.kernels.plain import Gain
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.choose import choose_kernels

_LINES = 25


def kernels(made: Made) -> Section:
    """Each kernel alone, beside PyTorch's, on 256 texts of 128 tokens with BERT-base's shape; and the upper bounds."""
    base = made.base(BERT_BASE)
    count, length = made.count(256, 3), made.count(128, 16)
    rows: list[list[Cell]] = []
    for what, moved, flops, call in (*_ceilings(made, count * length), *_calls(base, count, length)):
        try:
            taken = device_ms(call, made.count(30, 2))
        except Exception as error:  # whatever compilers raise
            rows.append([what, None, f"not run: {type(error).__name__}"])
            continue
        rate = f"{moved / taken / 1e9:.2f} TB/s" if moved else f"{flops / taken / 1e9:.0f} TFLOP/s" if flops else None
        rows.append([what, taken, rate])
    about = (
        "By the device's events; a task for each text. The rate counts each input read once, each output written once."
    )
    return Section("Kernels alone", about, ("what", "ms", "rate"), rows)


Call = tuple[str, float, float, Callable[[], object]]
"""The name of a kernel, the bytes that it has to move and its operations (0 if neither is its time alone), the call."""


def _ceilings(made: Made, tokens: int) -> Iterator[Call]:
    """The products of a full batch, and a copy, through PyTorch."""
    for into, out in ((768, 2304), (768, 768), (768, 3072), (3072, 768)):
        m, k, n = tokens, made.count(into, 64), made.count(out, 64)
        x, weight = (torch.randn(*shape, device=made.device).bfloat16() for shape in ((m, k), (n, k)))
        yield f"product {m} × {k} × {n}, bfloat16", 0, 2 * m * k * n, partial(F.linear, x, weight)
    source = torch.randn(made.count(2**30, 2**10), device=made.device)
    copy = partial(torch.empty_like(source).copy_, source)
    yield f"copy of {source.nbytes / 1e9:.1f} GB", 2 * source.nbytes, 0, copy


def _calls(base: Base, count: int, length: int) -> Iterator[Call]:
    h, f, heads, tokens = base.config.hidden_size, base.config.intermediate_size, base.config.num_heads, count * length
    bank, slots = bank_of(base, LORA, count)
    at = pack(base, texts(base, [length] * count), slots).stages[0]
    with torch.inference_mode():
        fast = choose_kernels(base, NO_DROPOUT)
        joined = fast.join(bank.rows.branches, at)[0, "qkv"]

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=base.device).to(base.dtype)

    qkv, x, y, z = (draw(tokens, width) for width in (3 * h, h, h, f))
    b_h, b_f, weight = bank.rows.shift[:, 0, :h], bank.rows.shift[:, 0, 3 * h :], draw(f, h)
    gain = Gain(base.layers[0].g["LN1"], bank.rows.gain[:, 0, 0], None)
    size = tokens * h * base.dtype.itemsize
    yield f"attend ({fast.name})", 0, 0, lambda: fast.attend(qkv, b_h, at, heads)
    yield f"add_norm ({fast.name})", 3 * size, 0, lambda: fast.add_norm(y, x, b_h, at, gain, base.config.eps)
    yield f"add_activate ({fast.name})", 2 * size * f / h, 0, lambda: fast.add_activate(z, b_f, at)
    yield "product, then add_activate", 0, 0, lambda: fast.add_activate(F.linear(x, weight), b_f, at)
    yield f"LoRA of {count} tasks on q, v ({fast.name})", 7 * size, 0, lambda: fast.add_branches(qkv, x, joined)
    yield "layer_norm (PyTorch, no addition)", 2 * size, 0, lambda: F.layer_norm(y, (h,))
    yield "gelu (PyTorch, no addition)", 2 * size * f / h, 0, lambda: F.gelu(z)
    q, k, v = qkv.view(count, length, 3, heads, h // heads).permute(2, 0, 3, 1, 4)
    yield "attention (PyTorch, no bias)", 0, 0, lambda: F.scaled_dot_product_attention(q, k, v)


def profile(made: Made) -> Section:
    """The profile of one step: a full batch of BERT-base, 256 LoRA tasks mixed."""
    base = made.base(BERT_BASE)
    count = made.count(256, 3)
    bank, slots = bank_of(base, LORA, count)
    inputs = texts(base, [made.count(128, 16)] * count)
    with torch.inference_mode():
        answer_on_host(base, bank.rows, inputs, slots)
        on_gpu = [profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU, *on_gpu]) as found:
            answer_on_host(base, bank.rows, inputs, slots)
    events = sorted(found.key_averages(), key=lambda event: event.self_device_time_total, reverse=True)
    rows = [[event.key[:90], event.count, event.self_device_time_total / 1e3] for event in events[:_LINES]]
    host = sum(event.self_cpu_time_total for event in events) / 1e3
    about = (
        f"One step under PyTorch's profiler, by the device's own time. On the host its operations took {host:.1f} ms."
    )
    return Section("Profile of a mixed LoRA batch", about, ("operation or kernel", "calls", "ms on the device"), rows)
