"""Packages that plug in, as an installer leaves them in a folder: modules, and a dist-info with entry points."""

from pathlib import Path


def write_package(folder: Path, name: str, groups: dict[str, dict[str, str]], **modules: str) -> Path:
    """Writes a package to a folder for `sys.path`; `groups` of entry points are name -> `module:object`."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, names in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {target}" for entry, target in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, code in modules.items():
        (folder / f"{module}.py").write_text(code)
    return folder
