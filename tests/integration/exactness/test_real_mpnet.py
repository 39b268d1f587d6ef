"""The real weights of all-mpnet-base-v2, twelve layers and 768 wide, against the plain Hugging Face model; vectors."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from bases import Reference, far_delta, random_texts, torch_tensors
from batches import logits_of, packed
from onebert_bench.mpnet import mpnet_folder
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.sentence import Vectors
from onebert_encoder.base.source import packaged_folder
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.host import Host

pytestmark = pytest.mark.slow

LENGTHS = [1, 2, 63, 64, 65, 66, 129, 130, 512]
KINDS = ("bitfit", "layernorm", "lora", "everything")


@pytest.fixture(scope="module")
def base() -> Iterator[Base]:
    with torch.inference_mode():
        yield load_base(str(mpnet_folder()), batch_invariant=True)


def test_a_mixed_batch_equals_the_plain_model(base: Base) -> None:
    # A tenth of `far_delta`'s differences: larger ones grow over twelve layers until float32 itself is off by more.
    drawn = [far_delta(base.spec, kind, "mean", labels=3, seed=seed) for seed, kind in enumerate(KINDS)]
    tasks = [{name: value if "index" in name else value / 10 for name, value in tensors.items()} for tensors in drawn]
    with torch.inference_mode():
        rows = stack_rows(base, [fold(base, {}), *(fold(base, torch_tensors(tensors)) for tensors in tasks)])
    texts, references = random_texts(LENGTHS), [Reference(mpnet_folder(), tensors, "mean") for tensors in tasks]
    asked = [(text, 1 + i % len(KINDS)) for i, text in enumerate(texts * 2)]
    with torch.inference_mode():
        together = logits_of(base, rows, packed(base, *map(list, zip(*asked, strict=True))))
        alone = [logits_of(base, rows, packed(base, [text], [row]))[0] for text, row in asked]
    for (text, row), logits, alone_logits in zip(asked, together, alone, strict=True):
        assert torch.equal(logits, alone_logits)
        torch.testing.assert_close(logits, references[row - 1].logits(text.input_ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("folder", [mpnet_folder, packaged_folder], ids=["mpnet", "minilm"])
def test_vectors_of_the_real_weights_are_those_of_sentence_transformers(folder: Callable[[], Path]) -> None:
    texts = ["please help my order is late", "the parcel is broken " * 150, "Größe 12 \u4f60\u597d", "a"]
    with torch.inference_mode():
        base = load_base(str(folder()))
        assert isinstance(base.vectors, Vectors)
        pieces = base.tokenizer.split(texts, base.vectors.max_length, placed=False)
        tokens = [base.tokenizer.cut(text, base.tokenizer.fit(text, base.vectors.max_length)) for text in pieces]
        host = Host(base, Bank(base))
        logits = torch.stack(
            [*map(torch.as_tensor, host.passes.launch(Sequences.of(tokens), [0] * len(tokens)).read())]
        )
    assert base.vectors.normalized
    expected = SentenceTransformer(str(folder()), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(torch.nn.functional.normalize(logits), expected, rtol=0, atol=1e-5)
