"""PyTorch's libraries are in the process before it is imported."""

import subprocess
import sys

import pytest

CODE = """
import sys, threading
from onebert_server.torch_ahead import load_torch_ahead
load_torch_ahead()
[thread.join() for thread in threading.enumerate() if thread.daemon]
print("torch" in sys.modules, "libtorch_python" in open("/proc/self/maps").read())
import torch
print(torch.ones(2).sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_pytorch_finds_its_libraries_loaded() -> None:
    child = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["False", "True", "2.0"]
