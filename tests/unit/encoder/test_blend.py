"""A blend of deltas, against a plain Hugging Face model whose parameters are the means of several such models'."""

import pytest
import torch
from torch.nn import functional as F

from bases import Reference, far_delta, loaded, manifest_for, random_texts, tiny_base
from batches import logits_of, packed
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.maths.rows import stack_rows
from onebert_store.errors import InvalidInput
from onebert_store.file.blend import blend
from onebert_store.file.delta import Delta, check
from onebert_store.file.format import dumps, loads
from onebert_store.file.manifest import parse_manifest

TEXTS = random_texts([3, 8, 21])
# Of one kind, of two kinds that have nothing in common, and of all kinds.
MIXES = [
    ("bitfit", "bitfit"),
    ("gains", "gains", "lora"),
    ("lora", "lora-xs"),
    ("lora-xs", "lora-xs"),
    ("sparse", "sparse", "frozen"),
    ("adapter", "adapter", "bitfit"),
    ("scale", "output-scale"),
    ("everything", "everything"),
]


def delta_of(base, kind, seed, pooling="mean", **changes):
    tensors = far_delta(base.spec, kind, pooling, 3, seed)
    return Delta(parse_manifest(manifest_for(base.spec, pooling, labels=3) | changes), tensors)


class Mean(Reference):
    """A model with the weighted means of the parameters of others, of their scales, and of their adapters' outputs."""

    def __init__(self, folder, deltas, weights):
        manifest = deltas[0].manifest
        models = [Reference(folder, one.tensors, manifest.pooling) for one in deltas]
        names = {name for one in models for name in one.tensors if name.startswith("head.")}
        head = {name: sum(w * one.tensors[name] for one, w in zip(models, weights, strict=True)) for name in names}
        super().__init__(folder, head, manifest.pooling)
        with torch.no_grad():
            for name, own in self.model.named_parameters():
                theirs = [dict(one.model.named_parameters())[name] for one in models]
                own.copy_(sum(w * each for each, w in zip(theirs, weights, strict=True)))
        tensors = {name for one in models for name in one.tensors}
        for name in sorted(name for name in tensors if "scale." in name):
            size = next(len(one.tensors[name]) for one in models if name in one.tensors)
            found = [one.tensors.get(name, torch.ones(size)) for one in models]
            self.tensors[name] = sum(w * each for each, w in zip(found, weights, strict=True))
            module = name.partition(".")[2]
            into = name.startswith("scale.") and self.model.get_submodule(module).weight.shape[0] < size
            (self._scale_input if into else self._scale_output)(module, name)
        for name in sorted(name for name in tensors if name.startswith("adapter_up.") and name.endswith(".bias")):
            module = name.removeprefix("adapter_up.").removesuffix(".bias")
            parts = [f"adapter_{way}.{module}.{kind}" for way in ("down", "up") for kind in ("weight", "bias")]
            adapters = [
                ([one.tensors[part] for part in parts], w)
                for one, w in zip(models, weights, strict=True)
                if name in one.tensors
            ]

            def adapted(_, __, y, adapters=adapters):
                return y + sum(w * (F.gelu(y @ D.T + c) @ U.T + u) for (D, c, U, u), w in adapters)

            self.model.get_submodule(module).register_forward_hook(adapted)


def logits(base, delta):
    with torch.inference_mode():
        rows = stack_rows(base, [fold_delta(base, delta)])
        return torch.stack(logits_of(base, rows, packed(base, TEXTS, [0] * len(TEXTS))))


@pytest.mark.promise("blend-exact")
@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("kinds", MIXES, ids="+".join)
def test_a_blend_answers_as_the_model_of_mean_parameters(family, kinds):
    base = loaded(family)
    weights = [0.5, 0.2, 0.3] if len(kinds) == 3 else [0.7, 0.3]
    deltas = [delta_of(base, kind, seed) for seed, kind in enumerate(kinds)]
    blended = loads(dumps(blend(deltas, weights)))
    check(blended, base.spec)
    twin = Mean(tiny_base(family), deltas, weights)
    expected = torch.stack([twin.logits(text.input_ids, text.type_ids) for text in TEXTS])
    torch.testing.assert_close(logits(base, blended), expected, atol=2e-4, rtol=1e-4)


def test_folded_rows_are_averaged_where_a_row_is_linear_in_its_tensors():
    base = loaded()
    deltas = [delta_of(base, kind, seed) for seed, kind in enumerate(("bitfit", "spafit"))]
    deltas = [
        Delta(
            one.manifest,
            {name: each for name, each in one.tensors.items() if "lora" not in name and "sparse" not in name},
        )
        for one in deltas
    ]
    one, two, both = (fold_delta(base, each) for each in (*deltas, blend(deltas, [0.25, 0.75])))
    # Biases move through the network's own weights, so the encoder's numbers are linear in them.
    torch.testing.assert_close(both.shift, 0.25 * one.shift + 0.75 * two.shift, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(both.head.weight, 0.25 * one.head.weight + 0.75 * two.head.weight)


def test_answers_go_from_one_delta_to_the_other_as_the_weight_does():
    base = loaded()
    deltas = [delta_of(base, "everything", seed) for seed in (1, 2)]
    ends = [logits(base, one) for one in deltas]
    assert abs(ends[0] - ends[1]).max() > 0.1
    for weight, end in ((1e-7, ends[0]), (1 - 1e-7, ends[1])):
        torch.testing.assert_close(logits(base, blend(deltas, [1 - weight, weight])), end, atol=1e-4, rtol=1e-4)


def test_ranks_over_a_matrix_own_rank_are_multiplied_out():
    base = loaded()
    deltas = [delta_of(base, "lora", seed) for seed in range(16)]
    blended = blend(deltas, [1 / 16] * 16)
    check(blended, base.spec)
    ranks = {len(tensor) for name, tensor in blended.tensors.items() if name.startswith("lora_A")}
    assert base.spec.hidden_size in ranks, "sixteen times one to four, cut to the width"
    twin = Mean(tiny_base(), deltas, [1 / 16] * 16)
    expected = torch.stack([twin.logits(text.input_ids) for text in TEXTS])
    torch.testing.assert_close(logits(base, blended), expected, atol=2e-4, rtol=1e-4)


def test_adapters_with_too_many_units_together_are_refused_in_one_sentence():
    base = loaded()
    deltas = [delta_of(base, "adapter", seed) for seed in range(16)]
    with pytest.raises(InvalidInput, match="units together, and the format allows 32: blend fewer"):
        blend(deltas, [1 / 16] * 16)


def test_the_heaviest_delta_decides_how_answers_are_read():
    base = loaded()
    rules = [{"temperature": 2.0}, {"temperature": 3.0}]
    deltas = [delta_of(base, "bitfit", 1, format=2, decision=rule, max_length=8 + i) for i, rule in enumerate(rules)]
    for weights, heaviest in (([0.6, 0.4], 0), ([0.4, 0.6], 1), ([0.5, 0.5], 1)):
        manifest = blend(deltas, weights).manifest
        assert manifest.decision == deltas[heaviest].manifest.decision
        assert (manifest.max_length, manifest.method) == (8 + heaviest, "blend")
        assert (manifest.golden, manifest.reference) == (None, None)


def test_a_blend_records_its_parts_and_the_task_that_all_of_them_name():
    base = loaded()
    tasks = [{"task": "tone"}, {"task": "tone"}, {"task": "mood"}, {}]
    parts = [delta_of(base, "bitfit", seed, training=training) for seed, training in enumerate(tasks)]
    recorded = [{"digest": part.digest, "weight": 0.5} for part in parts]
    assert blend(parts[:2], [0.5, 0.5]).manifest.training == {"task": "tone", "blend": recorded[:2]}
    assert blend(parts[1:3], [0.5, 0.5]).manifest.training == {"blend": recorded[1:3]}
    assert blend(parts[2:], [0.5, 0.5]).manifest.training == {"blend": recorded[2:]}


@pytest.mark.parametrize(
    ("weights", "other", "said"),
    [
        ([1.0], {}, "two deltas or more"),
        ([1.0, 0.0], {}, "above 0"),
        ([1.5, -0.5], {}, "above 0"),
        ([0.5, 0.4], {}, "1 together"),
        ([float("nan"), 0.5], {}, "above 0"),
        ([0.5, 0.5], {"labels": ["x", "y", "z"]}, "labels"),
        ([0.5, 0.5], {"task_type": "multi_label"}, "task_type"),
        ([0.5, 0.5], {"pooling": "cls"}, "pooling"),
        ([0.5, 0.5], {"base": {"name": "b", "model_type": "bert", "digest": "sha256:" + "0" * 64}}, "base"),
        ([0.5, 0.5], {"kind": "everything"}, "layers of their heads"),
    ],
)
def test_a_blend_without_a_meaning_is_refused_in_one_sentence(weights, other, said):
    base = loaded()
    kinds = ["bitfit", *[other.pop("kind", "bitfit")] * (len(weights) - 1)]
    deltas = [delta_of(base, kind, 1) for kind in kinds]
    deltas[-1] = Delta(parse_manifest(deltas[-1].manifest.model_dump() | other), deltas[-1].tensors)
    with pytest.raises(InvalidInput, match=said):
        blend(deltas, weights)
