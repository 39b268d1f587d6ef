"""The commands that need a server, or are one."""

from onebert_server.cli.audit import audit
from onebert_server.cli.card import card
from onebert_server.cli.classify import classify
from onebert_server.cli.compare.diff import diff
from onebert_server.cli.keys import keys
from onebert_server.cli.life import alias, delete, download, log, rename
from onebert_server.cli.score import score
from onebert_server.cli.serve import serve
from onebert_server.cli.tasks import promote, push, tasks

__all__ = [
    "alias",
    "audit",
    "card",
    "classify",
    "delete",
    "diff",
    "download",
    "keys",
    "log",
    "promote",
    "push",
    "rename",
    "score",
    "serve",
    "tasks",
]
