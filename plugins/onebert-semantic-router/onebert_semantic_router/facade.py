"""The façade that plugs in: the router's routes, its error form, and its fields in the list of models."""

from typing import Any

from onebert_semantic_router.bodies import Bundle, Classify, Flat
from onebert_semantic_router.bundle import bundle
from onebert_semantic_router.classify import classify
from onebert_semantic_router.flat import flat
from onebert_semantic_router.models import of_list, of_model
from onebert_server.facades.clients.health import coded
from onebert_server.facades.facade import Facade, ModelFields, Question


def _has(name: str, body: Any) -> bool:
    return isinstance(body, dict) and name in body


FACADE = Facade(
    "vLLM Semantic Router",
    coded,
    [
        Question("/v1/classify", Classify, classify, dict[str, Any], claims=lambda body: _has("input", body)),
        Question("/v1/bundle", Bundle, bundle),
        Question("/classify", Flat, flat, claims=lambda body: _has("inputs", body)),
    ],
    model_fields=ModelFields(of_list, of_model),
)
