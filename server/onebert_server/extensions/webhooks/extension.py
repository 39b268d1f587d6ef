"""Sends changes of aliases, versions and tasks, and events of this process, to the receiver of the settings."""

from contextlib import ExitStack

from onebert_server.extensions.webhooks.sender import Sender
from onebert_server.extensions.webhooks.settings import Settings, secret_of
from onebert_server.run.extension import Extension
from onebert_server.runtime import Runtime
from onebert_store.registry.replicas import Cursor


def _open(runtime: Runtime, opened: ExitStack) -> Sender | None:
    settings = runtime.settings_of(Settings)
    if settings.webhook_url is None or settings.webhook_key is None:
        return None
    registry, presence = runtime.registry, runtime.presence
    # The one owner of a registry resumes at once after a crash; a replica waits for the lease of a dead one.
    cursor = Cursor(registry.database, "webhooks", presence.id if presence else "owner")
    results = runtime.metrics.counter("webhook", "Webhooks sent, given up or dropped, and failed attempts.", "result")
    sender = Sender(
        settings.webhook_url,
        secret_of(settings.webhook_key),
        registry.feed,
        cursor,
        lambda result: results.labels(result).inc(),
    )
    opened.callback(sender.close)
    sender.start()
    runtime.hooks.changed.append(sender.emit)
    return sender


EXTENSION = Extension(_open)
