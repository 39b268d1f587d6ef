"""Small bases that sentence-transformers itself has saved, and its own models of them."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from bases import tiny_base


def saved_by_sentence_transformers(folder: Path, family: str, pooling: str, *, normalize: bool) -> SentenceTransformer:
    """Saves the tiny base of a family with its pooling; the model that this library reads from there."""
    encoder = Transformer(str(tiny_base(family)))
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling), *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return SentenceTransformer(str(folder), device="cpu")
