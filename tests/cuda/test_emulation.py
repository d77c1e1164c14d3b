"""The emulation itself: conformance in every order of threads, blocks and streams."""

from __future__ import annotations

import ctypes
import itertools

import pytest
from emulated_library import emulate, is_emulated, leaks, load

# What a GPU gives as well, says tools/gpu_check.sh.
CONFORMANCE = 0xF95575C1F07A18F5
ORDERS = ("forward", "reverse", "random")
STREAMS = ("eager", "lazy", "shuffle")


def conformance_hash() -> int:
    found = ctypes.c_ulonglong()
    assert load().expertree_cuda_conformance(ctypes.byref(found)) == 0
    return found.value


@pytest.mark.parametrize(("order", "streams"), list(itertools.product(ORDERS, STREAMS)))
def test_conformance(order: str, streams: str) -> None:
    if is_emulated():
        emulate(order=order, streams=streams, seed=3)
    assert conformance_hash() == CONFORMANCE
    if is_emulated():
        assert leaks() == ""
