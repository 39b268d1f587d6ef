"""Shared by both peft entries: the base with every task as a LoRA adapter, head included."""

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model

from bert import load_model, read_delta, torch_dtype
from worker import Job


def adapter(task: int) -> str:
    """A task's name."""
    return f"task-{task}"


def load_adapters(job: Job) -> PeftModel:
    """One base, an adapter for each of the job's files, with the file's numbers."""
    deltas = [read_delta(file)[0] for file in job.tasks]
    modules = [name.removeprefix("lora_A.") for name in deltas[0] if name.startswith("lora_A.")]
    rank = deltas[0][f"lora_A.{modules[0]}"].shape[0]
    # The files hold the scaled product, so alpha equals the rank.
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=rank,
        lora_alpha=rank,
        target_modules=sorted({name.rpartition(".")[2] for name in modules}),
        modules_to_save=["classifier"],
    )
    model = get_peft_model(load_model(job), config, adapter_name=adapter(0))
    for task in range(1, len(deltas)):
        model.add_adapter(adapter(task), config)
    with torch.no_grad():
        for task, found in enumerate(deltas):
            for name in modules:
                layer = model.base_model.model.bert.get_submodule(name)
                layer.lora_A[adapter(task)].weight.copy_(found[f"lora_A.{name}"])
                layer.lora_B[adapter(task)].weight.copy_(found[f"lora_B.{name}"])
            head = model.base_model.model.classifier.modules_to_save[adapter(task)]
            head.weight.copy_(found["head.weight"])
            head.bias.copy_(found["head.bias"])
    return model.to(job.device, torch_dtype(job)).eval()
