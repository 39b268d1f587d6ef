"""Compares golden logits with this server's own: every version passes before it answers, uploaded or loaded."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Self

import numpy as np

from onebert_encoder.answering.scores import Logits
from onebert_encoder.base.base import Base
from onebert_encoder.maths.predict import golden_tokens, golden_tolerance, tokens_of_ids
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Slot
from onebert_store.errors import GoldenMismatch, NotFinite
from onebert_store.file.delta import HEAD_BIAS, Delta
from onebert_store.file.manifest import Golden


@dataclass(frozen=True)
class GoldenCheck:
    """The answers that a version must give: the golden logits, or, without any, finite numbers for some sequences."""

    tokens: Sequence[Tokens]
    golden: Golden | None
    tolerance: float

    @classmethod
    def for_delta(cls, base: Base, delta: Delta) -> Self:
        manifest, golden = delta.manifest, delta.manifest.golden
        if golden is None:
            return cls(golden_tokens(base, manifest.max_length, manifest.pooling), None, 0.0)
        bias = delta.tensors[HEAD_BIAS].astype(np.float64).tolist()
        tolerance = golden_tolerance(base.precision, golden.logits, bias)
        return cls([tokens_of_ids(ids, manifest.pooling) for ids in golden.input_ids], golden, tolerance)

    def begin(self, engine: Engine, slot: Slot) -> Future[list[Logits]]:
        """Submits the sequences to the engine, which always admits them; raises ShuttingDown or EngineFailed."""
        return engine.ask(slot.host, self.tokens, slot.number)

    def compare(self, logits: Sequence[Logits]) -> None:
        """Raises NotFinite if an answer is NaN or infinite, and GoldenMismatch if it is not the trainer's."""
        if not all(np.isfinite(row).all() for row in logits):
            raise NotFinite("the delta's answers are not finite numbers")
        if self.golden is None:
            return
        pairs = zip(logits, self.golden.logits, strict=True)
        worst = max(float(np.abs(computed.ravel() - np.asarray(golden)).max()) for computed, golden in pairs)
        if not worst <= self.tolerance:
            allowed = f"{self.tolerance:.2g} is allowed"
            raise GoldenMismatch(f"the logits computed here differ from the trainer's by up to {worst:.2g}; {allowed}")
