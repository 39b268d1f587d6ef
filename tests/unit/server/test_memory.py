"""What a batch frees is kept for the next: asked of the kernel, which counts the pages it hands out."""

import platform
import subprocess
import sys

import pytest

# A block above all that glibc keeps by itself, made and freed again and again.
PAGES_OF_TEN_BLOCKS = """
import resource
from onebert_server.engine.memory import keep_freed_memory
keep_freed_memory()
b"x" * (40 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    b"x" * (40 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_a_freed_block_is_used_again_without_new_pages() -> None:
    child = subprocess.run([sys.executable, "-c", PAGES_OF_TEN_BLOCKS], capture_output=True, text=True, check=True)
    assert int(child.stdout) < (40 << 20) // 4096 / 10
