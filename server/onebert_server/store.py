"""The address of the store; apart, so that `onebert score` starts without the parts of a server."""

from onebert_server.settings import Settings
from onebert_store.registry.store import StoreAddress


def store_address(settings: Settings) -> StoreAddress:
    """Builds the address of the tasks and files from the settings."""
    return StoreAddress.within(settings.data_dir, settings.registry, settings.blobs, settings.blob_cache_bytes)
