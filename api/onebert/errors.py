"""Every error that OneBERT raises; all are kinds of `OneBertError`."""

from onebert_store.errors import *  # noqa: F403
