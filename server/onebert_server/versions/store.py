"""The address of the store; apart, so that `onebert score` starts without the parts of a server."""

from onebert_server.settings import Settings
from onebert_store.registry.store import StoreAddress

# Bytes that copies of files from a bucket take in the data folder at most, so that loading a version reads the disk.
COPIES_BYTES = 2**30


def store_address(settings: Settings) -> StoreAddress:
    """Builds the address of the tasks and files from the settings."""
    return StoreAddress.within(settings.data_dir, settings.registry, settings.blobs, COPIES_BYTES)
