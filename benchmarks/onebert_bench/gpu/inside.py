"""Sections on what the device does in a step: upper bounds, single kernels, a profile, waits."""

import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, profiler
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from onebert_bench.gpu.made import BERT_BASE, Made, bank_of, bitfit, lora, texts
from onebert_bench.gpu.section import Cell, Section
from onebert_bench.gpu.serving import answer_on_host, launch
from onebert_bench.gpu.timing import device_ms
from onebert_encoder.base.base import Base
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.compute.kernels.protocol import Gain
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.layout.stage import Stage
from onebert_encoder.maths.choose import choose_kernels

_LINES = 25

Call = Callable[[], object]


def ceilings(made: Made) -> Section:
    """The device's two upper bounds, of copying and of matrix products, and the products of a full batch."""
    rows: list[list[Cell]] = []
    for tokens, into, out in ((8192, 8192, 8192), *((32768, *shape) for shape in _products())):
        m, k, n = (size if not made.scale.tiny else 64 for size in (tokens, into, out))
        x, weight = (torch.randn(*shape, device=made.device).bfloat16() for shape in ((m, k), (n, k)))
        taken = device_ms(partial(F.linear, x, weight), made.scale.count(20, 2))
        rows.append([f"product {m} × {k} × {n}, bfloat16", taken, f"{2 * m * k * n / taken / 1e9:.0f} TFLOP/s"])
    source = torch.randn(made.scale.count(2**30, 2**10), device=made.device)
    target = torch.empty_like(source)
    taken = device_ms(partial(target.copy_, source), made.scale.count(20, 2))
    rows.append([f"copy of {source.nbytes / 1e9:.1f} GB", taken, f"{2 * source.nbytes / taken / 1e9:.2f} TB/s"])
    return Section("Ceilings", "Through PyTorch, by the device's events.", ("what", "ms", "rate"), rows)


def _products() -> list[tuple[int, int]]:
    return [(768, 2304), (768, 768), (768, 3072), (3072, 768)]


def kernels(made: Made) -> Section:
    """Each kernel alone, ours and PyTorch's, on 256 texts of 128 tokens with BERT-base's shape."""
    base = made.base(BERT_BASE)
    count, length = made.scale.count(256, 3), made.scale.count(128, 16)
    rows: list[list[Cell]] = []
    for what, moved, call in _calls(base, count, length):
        try:
            taken = device_ms(call, made.scale.count(30, 2))
        except Exception as error:  # whatever compilers raise
            rows.append([what, None, f"not run: {type(error).__name__}"])
            continue
        rows.append([what, taken, f"{moved / taken / 1e9:.2f} TB/s" if moved else None])
    about = (
        "By the device's events; a task for each text. The rate counts each input read once, each output written once."
    )
    return Section("Kernels alone", about, ("what", "ms", "rate"), rows)


def _calls(base: Base, count: int, length: int) -> Iterator[tuple[str, float, Call]]:
    """For each kernel its name, the bytes that it has to move (0 if its time is not moving alone), and the call."""
    h, f, heads, tokens = base.config.hidden_size, base.config.intermediate_size, base.config.num_heads, count * length
    bank, slots = bank_of(base, lora, count)
    at = _stage(base, slots, length)
    with torch.inference_mode():
        fast = choose_kernels(base, NO_DROPOUT)
        joined = fast.join(bank.rows.branches, at)[0, "qkv"]

    def draw(width: int) -> Tensor:
        return torch.randn(tokens, width, device=base.device).to(base.dtype)

    qkv, x, y, z = draw(3 * h), draw(h), draw(h), draw(f)
    b_h, b_f = bank.rows.shift[:, 0, :h], bank.rows.shift[:, 0, 3 * h :]
    gain = Gain(base.layers[0].g["LN1"], bank.rows.gain[:, 0, 0], None)
    size = tokens * h * base.dtype.itemsize
    yield f"attend ({fast.description})", 0, lambda: fast.attend(qkv, b_h, at, heads)
    yield f"add_norm ({fast.name})", 3 * size, lambda: fast.add_norm(y, x, b_h, at, gain, base.config.eps)
    yield f"add_activate ({fast.name})", 2 * size * f / h, lambda: fast.add_activate(z, b_f, at)
    weight = torch.randn(f, h, device=base.device).to(base.dtype)
    yield "product, then add_activate", 0, lambda: fast.add_activate(F.linear(x, weight), b_f, at)
    if isinstance(fast, GpuKernels):
        yield "product with activation", 0, lambda: fast.project_activate_at_once(weight, x, b_f, at)
    yield f"LoRA of {count} tasks on q, v ({fast.name})", 7 * size, lambda: fast.add_branches(qkv, x, joined)
    yield "layer_norm (PyTorch, no addition)", 2 * size, lambda: F.layer_norm(y, (h,))
    yield "gelu (PyTorch, no addition)", 2 * size * f / h, lambda: F.gelu(z)
    q, k, v = qkv.view(count, length, 3, heads, h // heads).permute(2, 0, 3, 1, 4)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        yield f"attention, no bias ({backend.name})", 0, partial(_sdpa, backend, q, k, v)
    yield "attention, no bias (varlen_attn)", 0, partial(_varlen, qkv.view(tokens, 3, heads, -1), at, length)
    yield "attention, no bias (FlexAttention, compiled)", 0, _flex(q, k, v)


def _sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v)


def _flex(q: Tensor, k: Tensor, v: Tensor) -> Call:
    """FlexAttention on the texts laid end to end, each attending to itself; compiled when it is first called."""
    count, heads, length, _ = q.shape

    def is_same_text(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query // length == key // length

    @cache
    def ready() -> Call:
        if q.device.type == "cpu":
            raise NotImplementedError
        laid = [one.transpose(0, 1).reshape(1, heads, count * length, -1) for one in (q, k, v)]
        mask = create_block_mask(is_same_text, None, None, count * length, count * length, str(q.device))
        return partial(torch.compile(flex_attention, dynamic=False), *laid, block_mask=mask)

    def call() -> object:
        return ready()()

    return call


def _varlen(qkv: Tensor, at: Stage, longest: int) -> object:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - not in the oldest supported PyTorch

    if qkv.device.type == "cpu":
        raise NotImplementedError
    q, k, v = qkv.unbind(1)
    return varlen_attn(q, k, v, at.edges, at.edges, longest, longest)


def _stage(base: Base, slots: list[int], length: int) -> Stage:
    tokens = len(slots) * length
    edges = torch.arange(0, tokens + 1, length, dtype=torch.int32, device=base.device)
    runs = [(slot, i * length, (i + 1) * length) for i, slot in enumerate(slots)]
    of_token = torch.tensor(slots, device=base.device).repeat_interleave(length)
    lengths = np.full(len(slots), length)
    return Stage(range(base.config.num_layers), None, 0, of_token, runs, edges, np.array(slots), lengths, base.dtype)


def profile(made: Made) -> Section:
    """The profile of one step: a full batch of BERT-base, 256 LoRA tasks mixed."""
    base = made.base(BERT_BASE)
    count = made.scale.count(256, 3)
    bank, slots = bank_of(base, lora, count)
    inputs = texts(base, [made.scale.count(128, 16)] * count)
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


def waits(made: Made) -> Section:
    """How often the host waits for the device while it launches a step, as PyTorch counts it."""
    rows: list[list[Cell]] = []
    base = made.base(BERT_BASE)
    count = made.scale.count(256, 3)
    for name, make in (("BitFit", bitfit), ("LoRA r=8 q, v", lora)):
        bank, slots = bank_of(base, make, count)
        inputs = texts(base, [16] * count)
        with torch.inference_mode():
            answer_on_host(base, bank.rows, inputs, slots)
            rows.append([name, len(slots), _waits(lambda: launch(base, bank.rows, inputs, slots))])  # noqa: B023
    about = "As PyTorch's debug mode for synchronizations counts them; none is meant."
    return Section("Waits while a step is launched", about, ("tasks", "how many", "waits"), rows)


def _waits(run: Call) -> int | None:
    if not torch.cuda.is_available():
        return None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)
