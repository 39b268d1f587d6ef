"""Checkpoints of every task, fine-tuned here by transformers on texts whose fourth word decides."""

from itertools import product

import torch
import transformers
from transformers import AutoTokenizer

from bases import tiny_base

THINGS = ["screen", "refund", "water", "people", "time", "invoice", "password", "use", "order", "parcel"]
WORDS = ["great", "broken", "late", "long"]
ENDS = ["please", "help", "now", "very", "so", "then", "first", "only"]
TEXTS = [f"the {thing} was {word} {end}" for thing, end, word in product(THINGS, ENDS, WORDS)]

# Task type -> class of transformers, its configuration, and what is right of a text whose fourth word is WORDS[word].
TASKS = {
    "single_label": (
        "AutoModelForSequenceClassification",
        {"id2label": dict(enumerate(WORDS)), "label2id": {word: n for n, word in enumerate(WORDS)}},
        lambda word, _: word,
    ),
    "multi_label": (
        "AutoModelForSequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        lambda word, _: [float(word in (0, 3)), float(word in (1, 3)), float(word == 2)],
    ),
    "regression": ("AutoModelForSequenceClassification", {"num_labels": 1}, lambda word, _: 1.5 * word - 1),
    # Words of these texts are tokens: the fourth one is the fifth token.
    "token": (
        "AutoModelForTokenClassification",
        {"num_labels": 5},
        lambda word, length: [0, 0, 0, 0, 1 + word] + [0] * (length - 5),
    ),
}


def above_embeddings(name):
    """Embeddings of a tiny random base are as small as the steps of an optimizer; those of a real one hardly move."""
    return "embeddings" not in name or "LayerNorm" in name


def fine_tune(folder, family="bert", task="single_label", trained=above_embeddings, steps=25, lr=3e-3, fresh=None):
    """A model of the family's tiny base whose parameters named so are trained, saved as users save it.

    `fresh` is the configuration of a random model to train in its place, with the base's tokenizer.
    """
    torch.manual_seed(0)
    auto_class, config, gold = TASKS[task]
    tokenizer = AutoTokenizer.from_pretrained(tiny_base(family))
    if fresh is None:
        model = getattr(transformers, auto_class).from_pretrained(tiny_base(family), **config)
    else:
        theirs = fresh(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **config)
        model = getattr(transformers, auto_class).from_config(theirs)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained(name))
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=lr)
    tokens = tokenizer(TEXTS, padding=True, return_tensors="pt")
    length = tokens["input_ids"].shape[1]
    labels = torch.tensor([gold(WORDS.index(text.split()[3]), length) for text in TEXTS])
    for _ in range(steps):
        optimizer.zero_grad()
        model(**tokens, labels=labels).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model
