"""The section on what the device does in a step: a profile."""

import torch
from torch import profiler

from onebert_bench.gpu.answering import answer_on_host
from onebert_bench.gpu.made import Made, texts
from onebert_bench.report import Section
from onebert_bench.workload import BERT_BASE, LORA, bank_of

_LINES = 25


def profile(made: Made) -> Section:
    """The profile of one step: a full batch of BERT-base, 256 LoRA tasks mixed."""
    base = made.base(BERT_BASE)
    count = made.count(256, 3)
    bank, slots = bank_of(base, LORA, count)
    inputs = texts(base, [made.count(128, 16)] * count)
    with torch.inference_mode():
        answer_on_host(base, bank.rows, inputs, slots)
        on_gpu = [profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU, *on_gpu]) as profile:
            answer_on_host(base, bank.rows, inputs, slots)
    events = sorted(profile.key_averages(), key=lambda event: event.self_device_time_total, reverse=True)
    rows = [[event.key[:90], event.count, event.self_device_time_total / 1e3] for event in events[:_LINES]]
    host = sum(event.self_cpu_time_total for event in events) / 1e3
    about = (
        f"One step under PyTorch's profiler, by the device's own time. On the host its operations took {host:.1f} ms."
    )
    return Section("Profile of a mixed LoRA batch", about, ("operation or kernel", "calls", "ms on the device"), rows)
