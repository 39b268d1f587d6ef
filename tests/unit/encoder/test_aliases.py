"""Families whose modules are another one's, under names of their own: transformers' class computes what the base does."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bases import ALIASES, Reference, as_read, far_task, random_texts, tiny_base
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import stack_rows
from onebert_store.errors import UnsupportedBase


@pytest.mark.parametrize("family", ALIASES)
def test_every_parameter_is_read_and_computed_as_in_its_own_class(family: str) -> None:
    base = load_base(str(tiny_base(family)))
    tasks = [far_task(base, kind, pooling) for kind in ("frozen", "everything") for pooling in base.spec.poolings]
    references = [Reference(tiny_base(family), tensors, row.head.pooling) for row, tensors in tasks if row.head]
    assert base.anatomy.weights == tuple(base.params)
    assert set(base.params) == {name for name, _ in references[0].model.named_parameters()}
    texts = [
        as_read(text, one.pooling) for text, one in zip(random_texts([1, 2, 17, 60] * 2), references, strict=False)
    ]
    with torch.inference_mode():
        got = compute_logits(base, stack_rows(base, [row for row, _ in tasks]), pack(base, texts, range(len(texts))))
    for logits, text, one in zip(got, texts, references, strict=True):
        torch.testing.assert_close(logits, one.logits(text.input_ids, text.type_ids, text.second), rtol=0, atol=1e-4)


V2 = {"conv_kernel_size": 3, "conv_act": "gelu"}


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("ernie", {"use_task_id": True}, "use_task_id in its config.json is True; only False is supported"),
        ("deberta-v2", V2, "conv_kernel_size in its config.json is 3; only 0 is supported"),
        ("deberta-v2", {"share_att_key": None}, "share_att_key in its config.json is None; only True is supported"),
        ("deberta-v2", {"pos_att_type": "c2p"}, "pos_att_type in its config.json is ['c2p']; only ['c2p', 'p2c'] is"),
        ("deberta-v2", {"position_buckets": -1}, "position_buckets in its config.json is not a whole number of 1 to"),
        ("deberta-v2", {"position_biased_input": True}, "position_biased_input in its config.json is True; only False"),
        ("deberta-v2", {"embedding_size": 16}, "embedding_size in its config.json is 16; only None is supported"),
        ("deberta-v2", {"model_type": "deberta"}, "architecture 'deberta' is not supported; supported: bert, "),
        ("camembert", {"model_type": "xmod"}, "architecture 'xmod' is not supported; supported: bert, "),
    ],
)
def test_what_a_family_has_and_we_do_not_compute_is_refused_in_one_sentence(
    tmp_path: Path, family: str, changes: Mapping[str, object], why: str
) -> None:
    folder = Path(shutil.copytree(tiny_base(family), tmp_path / "base"))
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **changes}))
    with pytest.raises(UnsupportedBase) as refused:
        load_base(str(folder))
    assert why in refused.value.detail
    assert "\n" not in refused.value.detail
