"""The ctypes structures that forward.cpp reads, with the fields of forward.h."""

import ctypes

from onebert_encoder.compute.kernels.library import FLOAT, INT, POINTER
from onebert_store.file.delta import PLACES

SITES = ("qkv", "m1", "after_m1", "m2", "m3", "after_m3")
"""The sites of a layer's branches, in the order of forward.h."""


class Weight(ctypes.Structure):
    """A packed weight; see `Packed`."""

    _fields_ = [("packed", POINTER), ("scale", POINTER), ("sums", POINTER)]


class Layer(ctypes.Structure):
    """The frozen weights of one layer."""

    _fields_ = [
        *((name, Weight) for name in ("qkv", "m1", "m2", "m3")),
        *((name, POINTER) for name in ("g_LN1", "g_LN2", "cos", "sin")),
        ("window", INT),
    ]


class Model(ctypes.Structure):
    """The frozen weights."""

    _fields_ = [
        *((name, INT) for name in ("h", "f", "heads", "layers", "words", "positions", "most")),
        *((name, INT) for name in ("pre_norm", "gated", "centered", "silu")),
        ("eps", FLOAT),
        *((name, POINTER) for name in ("word", "position", "g_LN0", "layer")),
    ]


class Scale(ctypes.Structure):
    """The scales of one place in every layer."""

    _fields_ = [("table", POINTER), ("of_token", POINTER)]


class Job(ctypes.Structure):
    """One stage of a batch."""

    _fields_ = [
        *((name, INT) for name in ("tokens", "sequences", "first_layer", "last_layer")),
        *((name, POINTER) for name in ("word", "position", "x", "edges", "row_of_token", "shift")),
        *((name, INT) for name in ("shift_row", "shift_layer")),
        *((name, POINTER) for name in ("g_LN0", "gain", "gain_of_token", "added")),
        ("scales", Scale * len(PLACES)),
        *((name, POINTER) for name in ("sites", "classifiers")),
        *((name, INT) for name in ("classifier_count", "threads")),
    ]
