"""The frozen matrix product in 8-bit integers: faster than bfloat16 where the processor has them, for answering only.

A token is quantized over its own range when it comes, a row of the weight once, over its own largest value
(docs/decisions/0014-int8.md). oneDNN's operators for it are private to PyTorch, and what this processor or version has no fast
code for they compute thousands of times slower or, on older processors, wrongly: so they are looked at before they are used.
"""

import subprocess
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from onebert_encoder.kernels.native import NativeKernels, load_native
from onebert_encoder.linear import FrozenLinear
from onebert_store.errors import InvalidSettings
