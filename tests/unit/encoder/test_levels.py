"""Which of a wheel's libraries is loaded, on processors that are given as what Linux says of them."""

import logging
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onebert_encoder.compute.kernels import compiler, library
from stages import anew, needs_kernels

# From /proc/cpuinfo, without what no library needs.
SANDY_BRIDGE = "fpu sse sse2 ssse3 sse4_1 sse4_2 avx xsave popcnt aes"
HASWELL = f"{SANDY_BRIDGE} avx2 fma f16c bmi1 bmi2 abm movbe"
SKYLAKE = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl clwb"
CASCADE_LAKE = f"{SKYLAKE} avx512_vnni"
COOPER_LAKE = f"{CASCADE_LAKE} avx512_bf16"
ZEN_3 = f"{HASWELL} sse4a vaes vpclmulqdq clwb"
ZEN_4 = f"{COOPER_LAKE} sse4a avx512ifma avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq"
SAPPHIRE_RAPIDS = f"{COOPER_LAKE} avx_vnni avx512_fp16 amx_bf16 amx_tile amx_int8"
# Programs on a kernel that cannot save wide registers see a processor that has none.
WITHOUT_AVX512 = " ".join(flag for flag in SAPPHIRE_RAPIDS.split() if not flag.startswith(("avx512", "amx")))

PROCESSORS = [
    ("x86_64", SANDY_BRIDGE, ""),
    ("x86_64", HASWELL, "avx2"),
    ("x86_64", ZEN_3, "avx2"),
    ("x86_64", SKYLAKE, "avx512 avx2"),
    ("x86_64", CASCADE_LAKE, "avx512_vnni avx512 avx2"),
    ("x86_64", COOPER_LAKE, "avx512_bf16 avx512_vnni avx512 avx2"),
    ("x86_64", ZEN_4, "avx512_bf16 avx512_vnni avx512 avx2"),
    ("x86_64", SAPPHIRE_RAPIDS, "amx avx512_bf16 avx512_vnni avx512 avx2"),
    ("x86_64", WITHOUT_AVX512, "avx2"),
    ("x86_64", "", ""),
    ("aarch64", "fp asimd crc32", "neon"),
    ("riscv64", "rv64imafdcv", ""),
]

# Libraries that do nothing but to be loaded, each as C.
RUNS = "int enable(void) { return 0; }"
REFUSED = "int enable(void) { return 1; }"
REFUSED_WITH_TILES = """
#ifdef __AMX_TILE__
extern "C" int enable() { return 1; }
#else
extern "C" int enable() { return 0; }
#endif
"""
ENDS_THE_PROCESS = "#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { abort(); }"

Pretend = Callable[..., None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pretend]:
    """Gives this machine a processor's flags, and libraries of a wheel by level; there is no compiler on the path."""

    def of(cpu_flags: str, **sources: str) -> None:
        source = tmp_path / "library.c"
        for level in compiler.LEVELS["x86_64"]:
            if level.name in sources:
                source.write_text(sources[level.name], encoding="utf-8")
                built = ["-shared", "-fPIC", str(source), "-o", str(tmp_path / compiler.file_name(level))]
                subprocess.run(["gcc", *built], check=True)
        monkeypatch.setattr(compiler, "FOLDER", tmp_path)
        monkeypatch.setattr(library, "_cpu_flags", lambda: cpu_flags)
        monkeypatch.setattr(library.platform, "machine", lambda: "x86_64")
        monkeypatch.setenv("PATH", str(tmp_path))

    with anew(library.find_library):
        yield of


@pytest.mark.parametrize(("machine", "cpu_flags", "names"), PROCESSORS)
def test_a_processor_runs_the_levels_whose_instructions_it_has(machine: str, cpu_flags: str, names: str) -> None:
    assert [level.name for level in compiler.supported(machine, cpu_flags.split())] == names.split()


@needs_kernels
@pytest.mark.parametrize(
    ("cpu_flags", "sources", "loaded", "message"),
    [
        pytest.param(
            CASCADE_LAKE,
            {"amx": ENDS_THE_PROCESS, "avx512_bf16": ENDS_THE_PROCESS, "avx512_vnni": RUNS, "avx512": RUNS},
            "avx512_vnni",
            "",
            id="the best that the processor has",
        ),
        pytest.param(
            SAPPHIRE_RAPIDS,
            {"amx": REFUSED, "avx512_bf16": RUNS, "avx2": RUNS},
            "avx512_bf16",
            "for amx are not used: the operating system keeps",
            id="the next, where the system refuses the matrix registers",
        ),
        pytest.param(
            SANDY_BRIDGE,
            {"avx2": ENDS_THE_PROCESS},
            None,
            "neither g++ nor c++ is installed",
            id="compiled as in a checkout, where none runs",
        ),
    ],
)
def test_the_library_that_is_loaded(
    pretend: Pretend,
    caplog: pytest.LogCaptureFixture,
    cpu_flags: str,
    sources: dict[str, str],
    loaded: str | None,
    message: str,
) -> None:
    pretend(cpu_flags, **sources)
    with caplog.at_level(logging.WARNING):
        level = library.find_library()
    assert (level and level.level) == loaded
    assert message in caplog.text
    assert len(caplog.records) == bool(message)


@needs_kernels
def test_a_library_of_other_sources_is_not_loaded(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(HASWELL, avx2=ENDS_THE_PROCESS)
    changed = tmp_path / "numbers.h"
    changed.write_text("// another version", encoding="utf-8")
    monkeypatch.setattr(compiler, "_HEADERS", (*compiler._HEADERS[1:], changed))
    assert library.find_library() is None
    assert "neither g++ nor c++ is installed" in caplog.text


@needs_kernels
@pytest.mark.skipif(platform.machine() != "x86_64", reason="matrix registers are Intel's")
def test_refused_matrix_registers_are_compiled_without_once(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, source, cache = os.environ["PATH"], tmp_path / "library.cpp", tmp_path / "cache"
    source.write_text(REFUSED_WITH_TILES, encoding="utf-8")
    pretend(SAPPHIRE_RAPIDS)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(compiler, "_SOURCES", (source,))
    # What -march=native means there, whatever processor the test runs on.
    monkeypatch.setattr(compiler, "NATIVE", ("-mamx-tile", "-mamx-bf16", "-mamx-int8"))

    def start() -> set[tuple[str, int]]:
        """Loads as a new process does; the files of the cache, by name and inode."""
        library.find_library.cache_clear()
        caplog.clear()
        assert library.find_library() is not None
        (record,) = caplog.records
        assert "compiled without matrix registers" in record.getMessage()
        return {(file.name, file.stat().st_ino) for file in cache.glob("onebert/*.so")}

    first = start()
    assert len(first) == 2
    assert start() == first
