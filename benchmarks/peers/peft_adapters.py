"""peft with every task a LoRA adapter, head included; mixed in a batch, or a padded batch for each task.

Argument: the name of an entry.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model

from merged import by_task, fastest, load_model, read_delta, tensors, torch_dtype, torch_forward
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    return PREPARE[sys.argv[1]](job, load_adapters(job))


def mixed(job: Job, model: PeftModel) -> Run:
    """A mixed batch: `adapter_names` names the adapter of each text."""

    @torch.inference_mode()
    def forward(chosen: Sequence[int]) -> np.ndarray:
        names = [adapter(job.task_of[i]) for i in chosen]
        return model(**tensors(job, chosen), adapter_names=names).logits.float().cpu().numpy()

    return fastest(job, forward)


def swapped(job: Job, model: PeftModel) -> Run:
    """The texts of each task are one padded batch, for which `set_adapter` activates the task's adapter."""
    forward, groups = torch_forward(job, model), by_task(job)

    def run() -> np.ndarray:
        logits = np.zeros((len(job.ids), 2))
        for task, members in groups.items():
            model.set_adapter(adapter(task), inference_mode=True)
            logits[members] = forward(members)
        return logits

    return run


PREPARE = {"peft_mixed": mixed, "peft_swapped": swapped}


def adapter(task: int) -> str:
    """A task's name."""
    return f"task-{task}"


@torch.no_grad()
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
    for task, delta in enumerate(deltas):
        for name in modules:
            layer = model.base_model.model.bert.get_submodule(name)
            layer.lora_A[adapter(task)].weight.copy_(delta[f"lora_A.{name}"])
            layer.lora_B[adapter(task)].weight.copy_(delta[f"lora_B.{name}"])
        head = model.base_model.model.classifier.modules_to_save[adapter(task)]
        head.weight.copy_(delta["head.weight"])
        head.bias.copy_(delta["head.bias"])
    return model.to(torch_dtype(job)).eval()


serve(prepare)
