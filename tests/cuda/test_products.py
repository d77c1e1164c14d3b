"""Packed weights, int8 rows and products against the scalar kernels, bit by bit."""

from __future__ import annotations

import ctypes
from ctypes import c_int64

import kernels
import numpy as np
import pytest
from expertree._core import _testing
from kernels import DenseMatrix, device, pack, packed_layout, product_input, type_number
from weights import FLOATS, QUANTISED, assert_same_bits, block_bytes, block_size, random_rows, random_weights


def codes_by_element(type_name: str, blocks: np.ndarray) -> np.ndarray:
    """uint8 [rows, blocks, bytes] -> the bits of each element without offset or table, [rows, blocks * elements]."""
    n = block_size(type_name)
    i = np.arange(n)
    if type_name == "Q8_0":
        codes = blocks[..., 2:]
    elif n == 32:
        start = block_bytes(type_name) - 16
        codes = blocks[..., start + i % 16] >> (i // 16 * 4) & 15
        if type_name in ("Q5_0", "Q5_1"):
            codes = codes | (blocks[..., start - 4 + i // 8] >> (i % 8) & 1) << 4
    elif type_name in ("Q2_K", "Q3_K"):
        start = 16 if type_name == "Q2_K" else 32
        codes = blocks[..., start + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        if type_name == "Q3_K":
            codes = codes | (blocks[..., i % 32] >> (i // 32) & 1) << 2
    elif type_name in ("Q4_K", "Q5_K"):
        start = 16 if type_name == "Q4_K" else 48
        codes = blocks[..., start + i // 64 * 32 + i % 32] >> (i % 64 // 32 * 4) & 15
        if type_name == "Q5_K":
            codes = codes | (blocks[..., 16 + i % 32] >> (i // 32) & 1) << 4
    elif type_name == "Q6_K":
        codes = blocks[..., i // 128 * 64 + i % 64] >> (i % 128 // 64 * 4) & 15
        codes = codes | (blocks[..., 128 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3) << 4
    else:
        assert type_name == "IQ4_XS"
        codes = blocks[..., 8 + i // 32 * 16 + i % 16] >> (i % 32 // 16 * 4) & 15
    return codes.reshape(blocks.shape[0], -1).astype(np.uint8)


CODE_BITS = {
    "Q8_0": (8, 0),
    "Q2_K": (2, 0),
    "Q3_K": (2, 1),
    "Q5_0": (4, 1),
    "Q5_1": (4, 1),
    "Q5_K": (4, 1),
    "Q6_K": (4, 2),
}
SCALE_FIELDS = {
    "Q4_K": (0, 16),
    "Q5_K": (0, 16),
    "IQ4_XS": (0, 8),
    "Q2_K": (0, 16),
    "Q6_K": (192, 16),
    "Q3_K": (96, 12),
}
D_FIELDS = {"Q2_K": (80, 4), "Q3_K": (108, 2), "Q6_K": (208, 2), "Q4_1": (0, 4), "Q5_1": (0, 4), "MXFP4": (0, 1)}


def pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [rows, groups, s, h, c, i] as packed_layout.h lays them: bytes [rows, all]."""
    rows, groups = codes.shape[:2]
    words = codes.transpose(0, 1, 4, 2, 3, 5).reshape(rows, groups, 4, 8, 4)  # lane, word 2 s + h, byte
    per_word = 8 // bits
    words = words.reshape(rows, groups, 4, 8 // per_word, per_word, 4).astype(np.uint32)
    packed = (words << (np.arange(per_word, dtype=np.uint32) * bits)[:, None]).sum(axis=4, dtype=np.uint32)
    return packed.astype(np.uint8).reshape(rows, -1)


def expected_planes(type_name: str, w: np.ndarray, k: int) -> list[np.ndarray]:
    """The text of packed_layout.h in numpy: four planes [rows, row bytes]."""
    rows = w.shape[0]
    none = np.zeros((rows, 0), np.uint8)
    if type_name in FLOATS:
        size = 4 if type_name == "F32" else 2
        n = 16 // size
        elements = np.zeros((rows, -(-k // (16 * n)) * 16 * n, size), np.uint8)
        elements[:, :k] = w.reshape(rows, k, size)
        return [elements.reshape(rows, -1, n, 16, size).transpose(0, 1, 3, 2, 4).reshape(rows, -1), none, none, none]
    blocks = w.reshape(rows, -1, block_bytes(type_name))
    groups = -(-k // 128)
    codes = np.zeros((rows, groups * 128), np.uint8)
    codes[:, :k] = codes_by_element(type_name, blocks)
    codes = codes.reshape(rows, groups, 4, 2, 4, 4)
    low_bits, high_bits = CODE_BITS.get(type_name, (4, 0))
    low = pack_bits(codes & ((1 << low_bits) - 1), low_bits)
    high = pack_bits(codes >> low_bits, high_bits) if high_bits else none
    at, size = SCALE_FIELDS.get(type_name, (0, 0))
    scales = blocks[..., at : at + size].reshape(rows, -1)
    at, size = D_FIELDS.get(type_name, (0, 0 if type_name in SCALE_FIELDS else 2))
    d = np.zeros((rows, groups * 128 // block_size(type_name), size), np.uint8)
    d[:, : blocks.shape[1]] = blocks[..., at : at + size]
    return [low, high, scales, d.reshape(rows, -1)]


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_packing(type_name: str, order: str) -> None:
    rng = np.random.default_rng(1)
    lengths = (1, 7, 64, 100, 128, 300) if type_name in FLOATS else [block_size(type_name) * n for n in (1, 3, 4, 6)]
    for rows in (1, 5):
        for k in lengths:
            w = random_weights(rng, type_name, rows, k)
            if type_name not in FLOATS:
                w = rng.integers(0, 256, w.shape, dtype=np.uint8)
            layout = packed_layout(type_name, rows, k)
            with device() as on:
                packed = on.get(pack(on, type_name, w, k), (layout.bytes,), np.uint8)
            on_host = np.empty(layout.bytes, np.uint8)
            kernels.load().et_pack_on_host(
                type_number(type_name), w.ctypes.data_as(ctypes.c_void_p), c_int64(rows), c_int64(k),
                on_host.ctypes.data_as(ctypes.c_void_p),
            )  # fmt: skip
            at = 0
            for plane, want in enumerate(expected_planes(type_name, w, k)):
                assert layout.offset[plane] == at and layout.row_bytes[plane] == want.shape[1]
                for what, found in (("device", packed), ("host", on_host)):
                    got = found[at : at + want.size].reshape(want.shape)
                    np.testing.assert_array_equal(got, want, err_msg=f"{type_name} {kernels.PLANES[plane]} {what}")
                at = (at + want.size + 15) // 16 * 16
            assert layout.bytes == at
            if type_name not in FLOATS and k % 128 == 0:  # nothing is lost, nothing added but the planes' ends
                assert 0 <= layout.bytes - w.size < 4 * 16


def test_what_cannot_be_packed() -> None:
    for type_name in (*QUANTISED, *FLOATS):
        assert kernels.load().et_is_packable(type_number(type_name))
    for type_name in ("IQ1_S", "IQ2_XXS", "TQ1_0", "Q8_K"):
        assert not kernels.load().et_is_packable(type_number(type_name))
    with device() as on, pytest.raises(kernels.CudaError):
        pack(on, "Q4_K", np.zeros((1, 144), np.uint8), 255)


def in_element_order(q: np.ndarray) -> np.ndarray:
    """int8_rows.h: bytes 32 c + 8 s + 4 h + i of a group to element 32 s + 16 h + 4 c + i."""
    rows = q.shape[0]
    return q.reshape(rows, -1, 4, 4, 2, 4).transpose(0, 1, 3, 4, 2, 5).reshape(rows, -1)


def awkward_rows(n: int) -> np.ndarray:
    """Zeros, signs, overflow of the inverse, infinity and NaN, ties."""
    rows = [np.zeros(n), -np.zeros(n), np.full(n, 1e-40), np.full(n, 3.5e-37), np.full(n, 4e-37), np.full(n, 3.4e38)]
    for special in (np.inf, -np.inf, np.nan):
        row = np.ones(n)
        row[-1] = special
        rows.append(row)
    ties = (np.arange(n) % 255 - 127) / 2.0
    ties[::32] = 127.0
    return np.array([*rows, ties, -ties]).astype(np.float32)


@pytest.mark.parametrize("block", [32, 256])
def test_quantize_rows(block: int, order: str) -> None:
    for n in (block, 2 * block, 5 * block):
        x = np.concatenate([random_rows(np.random.default_rng(n), 9, n), awkward_rows(n)])
        q, d, sums = _testing.quantize_rows("scalar", block, x)
        with device() as on:
            rows = kernels.int8_rows(on, x, block)
            got = in_element_order(on.get(rows.q, (len(x), rows.q_stride), np.int8))
            got_d = on.get(rows.d, (len(x), rows.d_stride))
            got_sums = on.get(rows.sums16, (len(x), rows.sums_stride), np.int16)
        np.testing.assert_array_equal(got[:, :n], q)
        np.testing.assert_array_equal(got_sums[:, : n // 16], sums)
        assert_same_bits(got_d[:, : n // block].copy(), d)
        assert not got[:, n:].any() and not got_sums[:, n // 16 :].any() and not got_d[:, n // block :].any()


def product(
    type_name: str, w: np.ndarray, x: np.ndarray, dp4a_rows: int, scale: float, bias: np.ndarray | None
) -> np.ndarray:
    rows, (n_rows, k) = w.shape[0], x.shape
    with device() as on:
        matrix = DenseMatrix(type_number(type_name), rows, k, pack(on, type_name, w, k), scale, on.put(bias))
        y = on.put(np.full((n_rows, rows + 3), 7.0, np.float32))
        source = product_input(on, type_name, x)
        kernels.call(
            "product", ctypes.byref(matrix), ctypes.byref(source), n_rows, y, c_int64(rows + 3), on.stream, dp4a_rows
        )
        out = on.get(y, (n_rows, rows + 3))
    assert (out[:, rows:] == 7.0).all(), "written outside its rows"
    return out[:, :rows].copy()


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_products(type_name: str, order: str) -> None:
    rng = np.random.default_rng(3)
    if type_name in FLOATS:
        shapes = [(1, 1, 1), (5, 17, 3), (33, 300, 9), (19, 128, 17)]
    else:
        n = block_size(type_name)
        shapes = [(1, n, 1), (5, 3 * n, 2), (37, (5 if n == 256 else 37) * n, 8), (70, 2 * n, 9), (17, 6 * n, 41)]
    for rows, k, n_rows in shapes:
        w, x = random_weights(rng, type_name, rows, k), random_rows(rng, n_rows, k)
        want = _testing.matmul("scalar", type_name, w, x)
        bias = rng.standard_normal(rows).astype(np.float32) if rows % 2 else None
        scale = np.float32(0.37 if rows % 2 else 1.0)
        want = want * scale if bias is None else want * scale + bias
        for dp4a_rows in (0, 8, 100):
            if type_name in FLOATS and dp4a_rows != 8:
                continue
            got = product(type_name, w, x, dp4a_rows, float(scale), bias)
            assert_same_bits(got, want, f"{type_name} rows {rows} k {k} inputs {n_rows} dp4a up to {dp4a_rows}")
