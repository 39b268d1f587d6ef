"""The table of façades: a new one is one file and one entry here."""

from onebert_server.facades.clients import fms, hugging_face, kserve, litellm, open_inference, openai, tei, vllm
from onebert_server.facades.clients.semantic_router import facade as semantic_router
from onebert_server.facades.facade import Facade

FACADES: tuple[Facade, ...] = (
    hugging_face.FACADE,
    tei.FACADE,
    fms.FACADE,
    vllm.FACADE,
    openai.FACADE,
    kserve.FACADE,
    *semantic_router.FACADES,
    open_inference.FACADE,
    litellm.FACADE,
)
