"""Compiles the CPU kernels into a wheel: one library for each level of instructions, beside the C++ it is built from.

Without a compiler the wheel has the C++ alone, which is then compiled where it is first used. So it is in an editable
installation, whose C++ changes.
"""

import os
import platform
import re
import runpy
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_KERNELS = Path("onebert_encoder/compute/kernels")


class KernelsHook(BuildHookInterface):
    """Adds the libraries to a wheel, and the tag of the platform that they are for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, unless the wheel is editable; the libraries are removed after the build."""
        # The file alone, since importing the package around it would import PyTorch.
        compiler = SimpleNamespace(**runpy.run_path(str(Path(self.root, "encoder", _KERNELS, "compiler.py"))))
        machine = platform.machine()
        if version == "editable" or machine not in compiler.LEVELS:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="onebert-wheel-")
        try:
            libraries = _compile(compiler, machine, Path(self._folder.name))
        except (OSError, subprocess.SubprocessError) as error:
            why = compiler.reason(error)
            self.app.display_warning(f"the wheel has no compiled CPU kernels ({why}); they are compiled at first use")
            return
        build_data["force_include"].update(
            {str(library): str(_KERNELS / "cpu" / library.name) for library in libraries}
        )
        build_data.update(pure_python=False, tag=f"py3-none-{_platform(machine, libraries)}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was compiled, which is in the wheel now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _compile(compiler: SimpleNamespace, machine: str, folder: Path) -> list[Path]:
    path = compiler.find_compiler()

    def build(level: Any) -> Path:
        return compiler.compile_library(path, folder / compiler.file_name(level), level.flags, compiler.PORTABLE)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(build, compiler.LEVELS[machine]))


def _platform(machine: str, libraries: list[Path]) -> str:
    """The platform's tag: manylinux with the oldest glibc that has all functions which the libraries call."""
    contents = [library.read_bytes() for library in libraries]
    needed = [version for content in contents for version in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)]
    if any(b"GLIBC_ABI_DT_RELR" in content for content in contents):  # packed relocations, which glibc 2.36 brought
        needed.append((b"2", b"36"))
    if not needed:  # another C library
        return f"linux_{machine}"
    major, minor = max((int(major), int(minor)) for major, minor in needed)
    return f"manylinux_{major}_{minor}_{machine}"
