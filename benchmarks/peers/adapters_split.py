"""AdapterHub's `adapters` with BatchSplit: every task a LoRA, the batch ordered by task."""

import adapters
import numpy as np
import torch
from adapters import AutoAdapterModel
from adapters.composition import BatchSplit

from merged import by_task, read_delta, read_loras, tensors, torch_dtype
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    model = load_adapters(job)
    groups = by_task(job)
    order = [i for members in groups.values() for i in members]
    sizes = [len(members) for members in groups.values()]
    names = [f"task-{task}" for task in groups]
    heads = [read_delta(job.tasks[job.task_of[i]])[0] for i in order]
    weight, bias = (torch.stack([head[f"head.{part}"] for head in heads]).numpy() for part in ("weight", "bias"))

    @torch.inference_mode()
    def run() -> np.ndarray:
        model.active_adapters = BatchSplit(*names, batch_sizes=sizes)
        # The heads are applied here, since the library's own would read the first texts' pooler output in every split.
        pooled = model.bert(**tensors(job, order)).pooler_output
        rows = np.einsum("sh,slh->sl", pooled.float().cpu().numpy(), weight) + bias
        return rows[np.argsort(order)]

    return run


def load_adapters(job: Job) -> torch.nn.Module:
    """One base with a LoRA for each of the job's files, with the file's weights."""
    model = AutoAdapterModel.from_pretrained(job.base)
    deltas, modules, rank = read_loras(job)
    targets = sorted({name.rpartition(".")[2] for name in modules})
    # The files hold the scaled product, so alpha equals the rank.
    config = adapters.LoRAConfig(r=rank, alpha=rank, attn_matrices=[name[0] for name in targets])
    with torch.no_grad():
        for task, found in enumerate(deltas):
            name = f"task-{task}"
            model.add_adapter(name, config=config)
            for module in modules:
                lora = model.bert.get_submodule(module).loras[name]
                lora.lora_A.copy_(found[f"lora_A.{module}"])
                lora.lora_B.copy_(found[f"lora_B.{module}"])
    return model.to(job.device, torch_dtype(job)).eval()


serve(prepare)
