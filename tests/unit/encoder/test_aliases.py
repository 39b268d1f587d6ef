"""Families whose modules are another one's, under names of their own, against their own classes of transformers."""

import pytest
import torch

from bases import ALIASES, Reference, as_read, far_task, random_texts, tiny_base
from batches import logits_of, packed
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.rows import stack_rows


@pytest.mark.parametrize("family", ALIASES)
def test_every_parameter_is_read_and_computed_as_its_own_class_does(family: str) -> None:
    base = load_base(str(tiny_base(family)))
    tasks = [far_task(base, kind, pooling) for kind in ("frozen", "everything") for pooling in base.spec.poolings]
    references = [Reference(tiny_base(family), tensors, row.head.pooling) for row, tensors in tasks if row.head]
    assert base.anatomy.weights == tuple(base.params)
    assert set(base.params) == {name for name, _ in references[0].model.named_parameters()}
    texts = [
        as_read(text, reference.pooling)
        for text, reference in zip(random_texts([1, 2, 17, 60] * 2), references, strict=False)
    ]
    with torch.inference_mode():
        got = logits_of(base, stack_rows(base, [row for row, _ in tasks]), packed(base, texts, range(len(texts))))
    for logits, text, reference in zip(got, texts, references, strict=True):
        torch.testing.assert_close(
            logits, reference.logits(text.input_ids, text.type_ids, text.second), rtol=0, atol=1e-4
        )
