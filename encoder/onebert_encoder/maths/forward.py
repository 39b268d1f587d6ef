"""The forward pass in one native call per stage of a batch, from token ids to logits.

Small batches spend more time between operations than in them. In one call the threads that share a small batch
synchronize a few times per layer; of a larger one each takes groups of texts, and they wait only at the end. Python is
left once. `encode` computes the same operation by operation; tests compare the two.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base.base import Base
from onebert_encoder.blocks.pre_norm import PreNorm
from onebert_encoder.blocks.running import LayerWeights
from onebert_encoder.blocks.sublayers import Sublayers
from onebert_encoder.compute.kernels.forward import SITES, Job, Layer, Model, Scale
from onebert_encoder.compute.kernels.plain import Gain, normalize
from onebert_encoder.compute.kernels.products import NativeProducts, Packed
from onebert_encoder.compute.linear import PackedLinear
from onebert_encoder.compute.plain import Linear
from onebert_encoder.compute.scores import ByDistance, Rotary
from onebert_encoder.layout.stage import Stage
from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.flat import Flat, ranges
from onebert_encoder.maths.rows import Heads, Number, Rows

# Size of a site in forward.h, and of a classifier in heads.h, in 64-bit numbers.
_OF_SITE, _OF_CLASSIFIER = 4, 8
_NO_CLASSIFIERS: Array = np.empty((0, _OF_CLASSIFIER), dtype=np.int64)


class Forward:
    """The native program of `Sublayers`: one base's forward pass, on a CPU, with all products packed."""

    def __init__(self, base: Base, block: Sublayers, products: NativeProducts) -> None:
        self._run = products.forward
        self._width, self._depth = base.config.hidden_size, base.config.num_layers
        # C++ reads tensors by address through these structures; keep both alive independently of the base.
        self._kept = base.layers
        self._embeddings = base.embeddings
        self._layers = (Layer * self._depth)(*(_layer(layer) for layer in base.layers))
        config, embeddings = base.config, base.embeddings
        self._model = Model(
            *(config.hidden_size, config.intermediate_size, config.num_heads, config.num_layers),
            *(len(embeddings.word), len(embeddings.position), config.max_length),
            *(isinstance(block, PreNorm), block.gated, base.anatomy.family.centered, config.activation == "silu"),
            config.eps,
            *(embeddings.word.data_ptr(), embeddings.position.data_ptr(), _address(embeddings.g_LN0)),
            ctypes.addressof(self._layers),
        )

    def classify(self, rows: Rows, batch: Batch, heads: Heads, logits: Flat) -> tuple[Tensor, Array]:
        """Encodes, and writes the logits of every input whose head has a native form; see `compute_logits`.

        Returns the last stage's tokens, and whether each input is written, [inputs].
        """
        numbers = heads.numbers[batch.inputs]
        written = numbers[:, Number.NATIVE] != 0
        classifiers = np.empty((len(numbers), _OF_CLASSIFIER), dtype=np.int64)
        classifiers[:, 0] = batch.sequence[batch.inputs]
        classifiers[:, 1:-1] = numbers[:, : Number.NATIVE]
        classifiers[:, -1] = logits.values.data_ptr() + logits.starts * logits.values.itemsize
        classifiers = classifiers[written]
        classifiers = classifiers[classifiers[:, 0].argsort(kind="stable")]
        return self._run_stages(rows, batch, None, classifiers), written

    def encode(self, rows: Rows, batch: Batch, activations: Tensor | None = None) -> Tensor:
        return self._run_stages(rows, batch, activations, _NO_CLASSIFIERS)

    def _run_stages(self, rows: Rows, batch: Batch, x: Tensor | None, classifiers: Array) -> Tensor:
        if x is None and self._embeddings.W_e is not None:
            x = self._projected(rows, batch, self._embeddings.W_e)
        enters = batch if x is None else None
        # PyTorch's memory begins at a cache line; numpy's need not, and LoRA's products then take 15 % longer.
        x = torch.empty(batch.word.shape[0], self._width) if x is None else x
        for stage in batch.stages:
            if stage.source is not None:
                # numpy gathers with one thread: PyTorch's team would spin on the cores that C++ needs next.
                x = torch.from_numpy(np.take(x.float().numpy(), stage.source.numpy(), axis=0))
            last = stage is batch.stages[-1]
            self._run_stage(rows, stage, x, enters, classifiers if last else _NO_CLASSIFIERS)
            enters = None
        return x

    def _projected(self, rows: Rows, batch: Batch, project: Linear) -> Tensor:
        weights, gains = self._embeddings, batch.stages[0].of_token(rows.numbers[:, [Number.GAIN]])[0]
        x = F.embedding(batch.word, weights.word).float() + F.embedding(batch.position, weights.position)
        of_token = None if gains is None else torch.from_numpy(gains)
        gain = Gain(weights.g_LN0.float(), rows.g_LN0.float(), of_token)
        return project(normalize(x, gain, self._model.eps).to(weights.word.dtype)).float()

    def _added(self, rows: Rows, stage: Stage) -> tuple[Array | None, list[Tensor]]:
        """[sequences] addresses of tables for `ByDistance`, else None; and the tables, which outlive the call."""
        scores = self._kept[0].scores
        if not isinstance(scores, ByDistance):
            return None, []
        tables = [scores.of_row(rows.scores[row]) for row in stage.rows.tolist()]
        return np.array([table.data_ptr() for table in tables], dtype=np.int64), tables

    def _run_stage(self, rows: Rows, stage: Stage, x: Tensor, enters: Batch | None, classifiers: Array) -> None:
        branches, gains, *of_places = stage.of_token(rows.numbers[:, Number.BRANCHES :])
        scales = (Scale * len(of_places))()
        for place, (table, of_token) in enumerate(zip(rows.scales.values(), of_places, strict=True)):
            if of_token is not None:
                scales[place] = Scale(table.data_ptr(), of_token.ctypes.data)
        added, _tables = self._added(rows, stage)
        sites, _objects = (None, None) if branches is None else _sites(rows, stage, self._depth)
        job = Job(
            *(stage.row_of_token.shape[0], len(stage.lengths), stage.layers.start, stage.layers.stop),
            enters.word.data_ptr() if enters is not None else None,
            enters.position.data_ptr() if enters is not None and len(self._embeddings.position) else None,
            *(x.data_ptr(), stage.edges.data_ptr(), stage.row_of_token.data_ptr()),
            *(*rows.addresses, None if gains is None else gains.ctypes.data),
            *(None if added is None else added.ctypes.data, scales),
            *(None if sites is None else sites.ctypes.data, classifiers.ctypes.data),
            *(len(classifiers), torch.get_num_threads()),
        )
        self._run(ctypes.byref(self._model), ctypes.byref(job))


def packed_weights(layer: LayerWeights) -> list[Packed]:
    """The packed weights of a layer, in the order of forward.h, which is the block's; without those not packed."""
    return [linear.packed for linear in layer.W.values() if isinstance(linear, PackedLinear)]


def _layer(layer: LayerWeights) -> Layer:
    """The addresses of a layer; a LayerNorm that it does not have has none."""
    gains = (None if norm in layer.identities else gain.data_ptr() for norm, gain in layer.g.items())
    scores = layer.scores
    turned = (scores.cos.data_ptr(), scores.sin.data_ptr(), scores.window) if isinstance(scores, Rotary) else ()
    return Layer(*(weight.struct for weight in packed_weights(layer)), *gains, *turned)


def _address(tensor: Tensor) -> int | None:
    return tensor.data_ptr() if len(tensor) else None


def _sites(rows: Rows, stage: Stage, layers: int) -> tuple[Array, list[object]]:
    """[layers * sites, 4] addresses and counts of branches, and the objects that must outlive the call."""
    of_rows, of_span = np.unique(stage.spans[:, 0], return_inverse=True)
    branches = [rows.branches[row] for row in of_rows.tolist()]
    sites: Array = np.zeros((layers * len(SITES), _OF_SITE), dtype=np.int64)
    objects: list[object] = [branches]
    for place, of_row in enumerate(zip(*(each.native(SITES) for each in branches), strict=True)):
        counts = np.array([len(numbers) for numbers in of_row])
        of_spans = counts[of_span]
        numbers = np.concatenate(of_row)[ranges((np.cumsum(counts) - counts)[of_span], of_spans)]
        # Within a site and a span branches keep their order. Small integers are sorted by their digits.
        order = np.argsort(numbers[:, 0].astype(np.int16), kind="stable")
        added = np.concatenate([np.repeat(stage.spans[:, 1:], of_spans, axis=0), numbers[:, 1:]], axis=1)[order]
        at_site = np.bincount(numbers[:, 0], minlength=len(sites))
        sites[:, 2 * place] = added.ctypes.data + (np.cumsum(at_site) - at_site) * added.strides[0]
        sites[:, 2 * place + 1] = at_site
        objects.append(added)
    return sites, objects
