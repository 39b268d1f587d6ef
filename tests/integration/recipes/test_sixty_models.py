"""docs/recipes/sixty-models.md, followed top to bottom with six of sixty: tiny models, fine-tuned here as users do."""

import csv
import re
from itertools import product

import pytest
import torch
from peft import LoraConfig
from transformers import AutoTokenizer, BertForSequenceClassification

from bases import tiny_base, write_base
from pages import blocks, run_block
from peft_models import random_adapter
from servers import Server

PAGE = "docs/recipes/sixty-models.md"
# Task -> label -> the word that means it.
TASKS = {
    "tone": {"praise": "great", "complaint": "broken"},
    "topic": {"parcel": "parcel", "account": "password"},
    "person": {"us": "we", "them": "they"},
    "time": {"past": "was", "future": "will"},
    "place": {"here": "in", "there": "out"},
    "number": {"one": "one", "many": "many"},
}
# Fine-tuned from another base, and so not to be imported.
FOREIGN = ("tone", "place", "number")
THINGS = ["screen", "refund", "water", "people", "time", "call", "number", "use"]
ENDS = ["please", "help", "now", "very", "so", "then", "first", "only"]


@pytest.fixture
def folder(tmp_path):
    """What the reader has: `data/TASK`, `old/TASK`, and an adapter."""
    for task, words in TASKS.items():
        rows = [(f"{thing} {word} {end}", label) for thing, end, (label, word) in product(THINGS, ENDS, words.items())]
        # Every seventh row is for testing: 19 of 128, of both labels.
        splits = {"train": [row for n, row in enumerate(rows) if n % 7], "test": rows[::7]}
        (tmp_path / "data" / task).mkdir(parents=True)
        for split, chosen in splits.items():
            with (tmp_path / "data" / task / f"{split}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *chosen])
        base = write_base("bert", tmp_path / "other-base", seed=1) if task in FOREIGN else tiny_base()
        fine_tune(base, splits["train"], list(words), tmp_path / "old" / task)
    random_adapter("bert", LoraConfig(task_type="SEQ_CLS", target_modules=["query"]), tmp_path / "adapters" / "adapted")
    return tmp_path


def fine_tune(base, rows, labels, folder):
    """A whole model of its own, all of it trained but embeddings, which are as small as the optimizer's steps here."""
    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}}
    model = BertForSequenceClassification.from_pretrained(base, **names)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model.bert.embeddings.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
    gold = torch.tensor([labels.index(label) for _, label in rows])
    for _ in range(40):
        optimizer.zero_grad()
        model(**tokens, labels=gold).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_following_the_page_works(folder):
    printed = []
    with Server(folder) as server:
        for block in blocks(PAGE, "bash", "python"):
            if block.kind == "server":
                continue
            code = block.code.replace("http://127.0.0.1:8000", server.url)
            # The page's reader has the default base; its own command line says how another one is named.
            code = re.sub(r"onebert (sweep|import)", rf"onebert \1 --base {tiny_base()}", code)
            printed.append(run_block(block.language, code, folder, ONEBERT_URL=server.url, HF_HUB_OFFLINE="0"))
        with server.client() as client:
            assert [task["name"] for task in client.tasks()] == sorted([*TASKS, "adapted"])
    taken, *_, compared, metrics = printed
    assert {path.stem for path in (folder / "imported").iterdir()} == TASKS.keys() - set(FOREIGN)
    lines = {line.partition(":")[0]: [int(n) for n in re.findall(r"\d+", line)] for line in compared.splitlines()}
    assert lines.keys() == TASKS.keys()
    rows, same, before, now = map(sum, zip(*lines.values(), strict=True))
    assert rows == 19 * len(TASKS)
    # A word decides each text, and guessing would be right in 57 of 114, give or take 5: both have learned it.
    assert min(before, now) > 90
    # Where both are right they say the same, and of two labels also where both are wrong.
    assert same >= before + now - rows
    # Of 19 texts 9 were compared at the import, all of which had to agree.
    assert all(lines[task][1] >= 17 for task in TASKS.keys() - set(FOREIGN))
    rows, row_bytes = (float(line.split()[1]) for line in metrics.splitlines())
    assert rows == len(TASKS) + 1
    # All tasks together take less than one of the old models.
    assert 0 < row_bytes < int(re.sub(r"\D", "", taken)) / len(TASKS)
