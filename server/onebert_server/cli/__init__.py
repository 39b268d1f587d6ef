"""The commands that need a server, or are one."""

from onebert_server.cli.audit import audit
from onebert_server.cli.classify import classify
from onebert_server.cli.keys import keys
from onebert_server.cli.score import score
from onebert_server.cli.serve import serve
from onebert_server.cli.tasks import delete, download, promote, push, tasks

__all__ = ["audit", "classify", "delete", "download", "keys", "promote", "push", "score", "serve", "tasks"]
