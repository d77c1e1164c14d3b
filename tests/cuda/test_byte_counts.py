"""Bytes of device memory that kernels ask for, counted on the emulated device: as reckoned by hand."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64

import counted_bytes
import kernels
import numpy as np
import pytest
from counted_bytes import LaunchBytes, count
from emulated_library import built, is_emulated
from kernels import DenseMatrix, Device, device, pack, product_input, type_number
from weights import random_rows, random_weights

THREADS = 64  # of a block of counted_kernels.cu
WHICH = (
    "read_by_all read_scattered read_one_by_one copy_asynchronously copy_structs copy_by_library count_threads"
).split()


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_emulated():
        pytest.skip("a GPU does not count")
    library = ctypes.CDLL(str(built("expertree_cuda_tests_count_few")))
    for module in (kernels, counted_bytes):
        monkeypatch.setattr(module, "load", lambda: library)


def count_one(which: str, n_blocks: int, n: int) -> LaunchBytes:
    with device() as on:
        source, to = on.put(np.ones(n, np.float32)), on.put(np.zeros(n, np.float32))
        found = count(on, lambda: on.run("counted", WHICH.index(which), n_blocks, source, to, n))
    assert len(found) == 1 and found[0].n_blocks == n_blocks
    return found[0]


def test_what_blocks_read_twice_shows_in_blocks_alone() -> None:
    found = count_one("read_by_all", 2, 1024)
    assert found.asked == found.block == (2 * 4096, 2 * 4 * THREADS)
    assert found.grid == (4096, 2 * 4 * THREADS)


def test_scattered_accesses_use_little_of_their_sectors() -> None:
    found = count_one("read_scattered", 1, 8 * THREADS)
    assert found.asked == found.warp_used == (4 * THREADS, 4 * THREADS)
    assert found.warp == found.block == found.grid == (32 * THREADS, 4 * THREADS)


def test_a_warp_asks_anew_each_time() -> None:
    n, warps = 64, THREADS // 32
    found = count_one("read_one_by_one", 1, n)
    assert found.asked[0] == THREADS * 4 * n
    assert found.warp_used[0] == warps * 4 * n and found.warp[0] == warps * 32 * n
    assert found.block[0] == found.grid[0] == 4 * n


@pytest.mark.parametrize(
    ("which", "n"), [("copy_asynchronously", 4 * THREADS), ("copy_structs", 8 * THREADS), ("copy_by_library", 99 * 8)]
)
def test_copies_of_every_kind_count_once(which: str, n: int) -> None:
    found = count_one(which, 1, n)
    assert found.asked == found.warp_used == found.warp == found.block == found.grid == (4 * n, 4 * n)


def test_atomics_read_and_write() -> None:
    found = count_one("count_threads", 2, 1)
    assert found.asked == (2 * 4 * THREADS,) * 2
    assert found.warp_used == (2 * 2 * 4,) * 2  # two warps of two blocks
    assert found.block == (2 * 32,) * 2 and found.grid == (32, 32)


def test_no_launch_counts_for_another() -> None:
    with device() as on:
        p = on.put(np.ones(512, np.float32))

        def twice() -> None:
            for _ in range(2):
                on.run("clamp", p, c_int64(512), c_float(0.5))

        assert [found.grid for found in count(on, twice)] == [(2048, 2048)] * 2
        assert count(on, lambda: None) == []


@pytest.mark.parametrize("n", [256, 1000])
def test_clamp(n: int) -> None:
    with device() as on:
        p = on.put(np.ones(n, np.float32))
        (found,) = count(on, lambda: on.run("clamp", p, c_int64(n), c_float(0.5)))
    assert found.n_blocks == (n + 255) // 256
    assert found.asked == found.warp_used == found.block == found.grid == (4 * n, 4 * n)


def test_rms_norm() -> None:
    """Rows once, thanks to shared memory; weights once for each row's block."""
    n_rows, n = 3, 2048
    with device() as on:
        x, w, y = on.put(np.ones((n_rows, n), np.float32)), on.put(np.ones(n, np.float32)), on.alloc(n_rows * n * 4)
        size = c_int64(n)
        (found,) = count(
            on, lambda: on.run("rms_norm", x, size, w, None, c_float(1e-5), c_int64(n_rows), size, y, size, False)
        )
    row = 4 * n
    assert found.asked == found.block == (2 * n_rows * row, n_rows * row)
    assert found.grid == ((n_rows + 1) * row, n_rows * row)


def put_product(on: Device, rows: int, k: int, n_rows: int) -> tuple[DenseMatrix, kernels.ProductInput]:
    rng = np.random.default_rng(1)
    packed = pack(on, "Q8_0", random_weights(rng, "Q8_0", rows, k), k)
    matrix = DenseMatrix(type_number("Q8_0"), rows, k, packed, 1.0, None)
    return matrix, product_input(on, "Q8_0", random_rows(rng, n_rows, k))


@pytest.mark.parametrize(("n_rows", "rows_of_block", "dp4a_rows"), [(1, 16, 8), (8, 8, 8), (32, 64, 8), (32, 64, 0)])
def test_product(n_rows: int, rows_of_block: int, dp4a_rows: int) -> None:
    """Weights once; inputs once for each block of weight rows."""
    rows, k = 128, 1024
    with device() as on:
        matrix, x = put_product(on, rows, k, n_rows)
        y = on.alloc(n_rows * rows * 4)
        matrix_and_input = ctypes.byref(matrix), ctypes.byref(x)
        found = count(
            on, lambda: kernels.call("product", *matrix_and_input, n_rows, y, c_int64(rows), on.stream, dp4a_rows)
        )
    idle, launch = found[:-1], found[-1]
    assert not any(sum(other.grid) for other in idle)  # launched for fewer rows
    weights, inputs, outputs = rows * (k + k // 32 * 2), n_rows * (k + k // 32 * 4), n_rows * rows * 4
    assert launch.n_blocks == rows // rows_of_block
    assert launch.grid == (weights + inputs, outputs)
    assert launch.block == (weights + rows // rows_of_block * inputs, outputs)
