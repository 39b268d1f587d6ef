"""Warnings about evaluation rows: the delta may have been fitted on them, or their texts are truncated."""

from collections.abc import Mapping, Sequence

from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import Manifest
from onebert_training.data.dataset import digest_of
from onebert_training.data.examples import Split


def trained_on(manifest: Manifest, data: str, split: str) -> list[str]:
    """Warns when the rows may be training rows: split `all` or `train` of data with the name of the training data."""
    trained = manifest.training.get("data")
    if split not in ("all", "train") or not isinstance(trained, Mapping) or trained.get("name") != data:
        return []
    return [
        "the delta was trained on data of this name; rows that it learned from promise too much: "
        "if these are those, take others before you rely on it"
    ]


def calibrated_on(manifest: Manifest, data: str, split: str, examples: Split) -> list[str]:
    """Warns when the digest shows that the delta was calibrated on these rows, or when the data's name suggests it."""
    calibration = manifest.training.get("calibration")
    known = calibration.get("data") if isinstance(calibration, Mapping) else None
    if not isinstance(calibration, Mapping) or not isinstance(known, Mapping):
        return []
    too_much = "promise too much of its temperature, thresholds and rule to abstain"
    # The digest covers the split's name, which a lone file does not have.
    named = {str(calibration.get("split")): examples}
    if known.get("digest") == digest_of(manifest.task_type, manifest.labels, named):
        return [f"the delta was calibrated on these very rows, which {too_much}: take others before you rely on it"]
    may_be = split == calibration.get("split") or "all" in (split, calibration.get("split"))
    if known.get("name") != data or not may_be:
        return []
    return [
        f"the delta was calibrated on data of this name; rows that it was calibrated on {too_much}: if these are "
        "those, take others before you rely on it"
    ]


def unread(tokens: Sequence[Tokens], manifest: Manifest) -> list[str]:
    """Counts the texts truncated at `max_length`, and warns when a server reads more of them."""
    window = None if manifest.decision is None else manifest.decision.window
    longer = sum(one.truncated or (window is not None and len(one) > window.tokens) for one in tokens)
    if not longer:
        return []
    if window is not None:
        return [
            f"{longer:,} texts are longer than a window: a server reads them whole, and here their beginning is read"
        ]
    return [
        f"of {longer:,} texts the beginning is read, {manifest.max_length} tokens, as a server does; "
        "clients that cannot be told of a cut get the answer of all windows, which is surer"
    ]
