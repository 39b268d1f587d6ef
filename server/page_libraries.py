"""Downloads the libraries of the page at `/` from npm: `make page-libraries`.

Each package is pinned to one version and one digest. Files are copied unchanged, except for imports of other packages:
a browser finds a module by its URL alone.
"""

import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parent / "onebert_server/page/static/vendor"

# Package and version -> SHA-256 of npm's archive, and its files: name in the archive -> name here.
PACKAGES: dict[str, tuple[str, dict[str, str]]] = {
    "preact@11.2.0": (
        "3c4456766bd32b6b534d52bf4e9c2a29b33e7eedf6e96ed479300ba1a7888ebf",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js", "LICENSE": "preact.LICENSE"},
    ),
    "htm@3.1.1": (
        "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
        {"dist/htm.module.js": "htm.js", "LICENSE": "htm.LICENSE"},
    ),
    "uplot@1.6.32": (
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css", "LICENSE": "uplot.LICENSE"},
    ),
}
# Text in npm's file -> text in our copy. We copy no source maps.
REWRITTEN = {
    b'from"preact"': b'from"./preact.js"',
    b"\n//# sourceMappingURL=preact.mjs.map": b"",
    b"\n//# sourceMappingURL=hooks.mjs.map": b"",
}


def renew(folder: Path) -> None:
    """Writes every file into a folder; needs the command `npm`, and exits if an archive has another digest."""
    for package, (digest, files) in PACKAGES.items():
        with tempfile.TemporaryDirectory() as place:
            command = ["npm", "pack", "--silent", package]
            subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - names from above
            [archive] = Path(place).glob("*.tgz")
            actual = hashlib.sha256(archive.read_bytes()).hexdigest()
            if actual != digest:
                raise SystemExit(f"{package} has the SHA-256 {actual}, and not {digest}")
            with tarfile.open(archive) as packed:
                for name, here in files.items():
                    member = packed.extractfile(f"package/{name}")
                    assert member is not None  # noqa: S101 - a file, and no folder
                    (folder / here).write_bytes(_rewritten(member.read()))


def _rewritten(content: bytes) -> bytes:
    for before, after in REWRITTEN.items():
        content = content.replace(before, after)
    return content


if __name__ == "__main__":
    renew(VENDOR)
