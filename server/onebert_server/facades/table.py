"""The façades that there are: a new one is one file, and one entry here."""

from onebert_server.facades import fms, hugging_face, tei
from onebert_server.facades.facade import Facade

FACADES: tuple[Facade, ...] = (hugging_face.FACADE, tei.FACADE, fms.FACADE)
