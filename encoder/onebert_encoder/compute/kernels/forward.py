"""The ctypes structures that forward.cpp reads, with the fields of forward.h."""

import ctypes

from onebert_store.file.delta import PLACES

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Weight(ctypes.Structure):
    """A packed weight; see `Packed`."""

    _fields_ = [("packed", _POINTER), ("scale", _POINTER), ("sums", _POINTER)]


class Layer(ctypes.Structure):
    """The frozen weights of one layer."""

    _fields_ = [*((name, Weight) for name in ("qkv", "m1", "m2", "m3")), ("g_LN1", _POINTER), ("g_LN2", _POINTER)]


class Model(ctypes.Structure):
    """The frozen weights."""

    _fields_ = [
        *((name, _INT) for name in ("h", "f", "heads", "layers", "words", "positions")),
        ("eps", _FLOAT),
        *((name, _POINTER) for name in ("word", "position", "g_LN0", "layer")),
    ]


class Scale(ctypes.Structure):
    """The scales of one place in every layer."""

    _fields_ = [("table", _POINTER), ("of_token", _POINTER)]


class Job(ctypes.Structure):
    """One stage of a batch."""

    _fields_ = [
        *((name, _INT) for name in ("tokens", "sequences", "first_layer", "last_layer")),
        *((name, _POINTER) for name in ("word", "position", "x", "edges", "row_of_token", "shift")),
        *((name, _INT) for name in ("shift_row", "shift_layer")),
        *((name, _POINTER) for name in ("g_LN0", "gain", "gain_of_token")),
        ("scales", Scale * len(PLACES)),
        *((name, _POINTER) for name in ("sites", "classifiers")),
        *((name, _INT) for name in ("classifier_count", "threads", "group")),
    ]
