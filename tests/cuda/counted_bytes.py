"""What launches asked of device memory, where the tests' library counts it (cuda/emulation/byte_counts.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_uint64
from dataclasses import dataclass

from emulated_library import load
from kernels import Device

SECTOR_BYTES = 32
ROOM = 1024  # launches


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", c_uint64),
        ("n_blocks", c_uint64),
        *[(f"{what}_bytes", c_uint64 * 2) for what in ("asked", "warp")],
        *[(f"{what}_sectors", c_uint64 * 2) for what in ("warp", "block", "grid")],
    ]


@dataclass(frozen=True)
class LaunchBytes:
    """Of one launch; pairs are what was read and what was written. Bytes of sectors are those of whole sectors."""

    kernel: int  # its address in the library, as nm has it
    n_blocks: int
    asked: tuple[int, int]  # by threads
    warp_used: tuple[int, int]  # different bytes that a warp asks for at once, summed over all accesses of warps
    warp: tuple[int, int]  # of the sectors that they are in
    block: tuple[int, int]  # of different sectors of a block, summed over blocks
    grid: tuple[int, int]  # of different sectors


def count(on: Device, work: Callable[[], None]) -> list[LaunchBytes]:
    """The launches of `work`, in their order."""
    launches = (_Launch * ROOM)()
    take = load().expertree_emu_take_launches
    take.restype = c_uint64
    on.wait()
    take(launches, c_uint64(0))
    work()
    on.wait()
    n = take(launches, c_uint64(ROOM))

    def pair(values: ctypes.Array[c_uint64], size: int = 1) -> tuple[int, int]:
        return values[0] * size, values[1] * size

    return [
        LaunchBytes(
            found.kernel, found.n_blocks, pair(found.asked_bytes), pair(found.warp_bytes),
            *[pair(sectors, SECTOR_BYTES) for sectors in (found.warp_sectors, found.block_sectors, found.grid_sectors)],
        )
        for found in launches[:n]
    ]  # fmt: skip
