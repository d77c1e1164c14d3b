"""The device library with the emulated CUDA, as the core loads it, and its controls (cuda/emulation/control.h)."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from expertree import _core

LIBRARY = Path(_core.__file__).parent / "libexpertree_cuda_emulated.so"
STREAMS = ("eager", "lazy", "shuffle")
# The numbers of Wait in cuda/runtime/wait_switch.h.
WAITS = {"copied": 1, "slot free": 2, "staging": 3, "inputs": 4, "outputs": 5}
# Of dense matrices.
DENSE_WAITS = {"loaded": 6, "dense inputs": 7, "dense outputs": 8}
# Of layers that run as a whole.
LAYER_WAITS = {"published": 9, "batch": 10}
_DEFAULTS = {"order": "forward", "streams": "eager", "seed": 1, "device_mem": 4 << 30, "fail": "", "abort": 1}


@functools.cache
def library() -> ctypes.CDLL:
    if not LIBRARY.exists():
        reason = "built without EXPERTREE_CUDA_EMULATED (make test builds with it)"
        if os.environ.get("EXPERTREE_REQUIRE_CUDA_TESTS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return ctypes.CDLL(str(LIBRARY))


def set_up(**settings: object) -> None:
    for key, value in settings.items():
        if library().expertree_emu_set(key.encode(), str(value).encode()):
            raise ValueError(f"the emulation does not understand {key}={value}")


@contextmanager
def emulated(**settings: object) -> Iterator[None]:
    """With these settings, and afterwards with the usual ones, all waits and no fault."""
    set_up(**{**_DEFAULTS, **settings})
    try:
        yield
    finally:
        set_up(**_DEFAULTS)
        library().expertree_drop_wait(0)
        library().expertree_emu_clear_faults()


def drop_wait(name: str) -> None:
    library().expertree_drop_wait((WAITS | DENSE_WAITS | LAYER_WAITS)[name])


def n_calls(call: str = "*") -> int:
    function = library().expertree_emu_n_calls
    function.restype = ctypes.c_ulonglong
    return int(function(call.encode()))


def leaks() -> str:
    function = library().expertree_emu_leaks
    function.restype = ctypes.c_char_p
    return str(function().decode())
