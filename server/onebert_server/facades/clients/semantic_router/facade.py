"""The router's façades: its routes, and health with its own error form."""

from typing import Any

from onebert_server.facades.clients.semantic_router.bodies import Bundle, Classify, Flat
from onebert_server.facades.clients.semantic_router.bundle import bundle
from onebert_server.facades.clients.semantic_router.classify import classify
from onebert_server.facades.clients.semantic_router.flat import flat
from onebert_server.facades.clients.semantic_router.health import health, live
from onebert_server.facades.clients.semantic_router.words import health_worded, worded
from onebert_server.facades.facade import Facade, Listing, Question


def _has(name: str, given: Any) -> bool:
    return isinstance(given, dict) and name in given


FACADES = (
    Facade(
        "vLLM Semantic Router",
        worded,
        [
            Question("/v1/classify", Classify, classify, dict[str, Any], claims=lambda given: _has("input", given)),
            Question("/v1/bundle", Bundle, bundle),
            Question("/classify", Flat, flat, claims=lambda given: _has("inputs", given)),
        ],
    ),
    Facade("Health", health_worded, [], [Listing("/health", health), Listing("/health/live", live)]),
)
