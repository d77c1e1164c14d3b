"""The tests' library: kernels, host code and tests' entry points, for an emulated device or a real one.

`EXPERTREE_CUDA_TESTS` names another one than the development build's (tools/run_emulated.sh: under a sanitizer;
tools/gpu_check.sh: built by nvcc). `EXPERTREE_EMU_*` set the emulation (cuda/emulation/control.h).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build_folder() -> Path | None:
    """Where the development build put what is made of cuda/, or None when it was built without."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = [path.parent for path in ROOT.glob(f"build/{tag}-*/cuda/libexpertree_cuda_tests.so")]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


@functools.cache
def library_path() -> Path:
    named = os.environ.get("EXPERTREE_CUDA_TESTS")
    if named:
        return Path(named)
    folder = build_folder()
    if folder is None:
        reason = "built without EXPERTREE_CUDA_EMULATED (make test builds with it)"
        if os.environ.get("EXPERTREE_REQUIRE_CUDA_TESTS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder / "libexpertree_cuda_tests.so"


@functools.cache
def load() -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path()))


def is_emulated() -> bool:
    return hasattr(load(), "expertree_emu_set")


def emulate(**settings: object) -> None:
    """Sets what cuda/emulation/control.h lists."""
    for key, value in settings.items():
        if load().expertree_emu_set(key.encode(), str(value).encode()):
            raise ValueError(f"the emulation does not understand {key}={value}")


def leaks() -> str:
    function = load().expertree_emu_leaks
    function.restype = ctypes.c_char_p
    return str(function().decode())
