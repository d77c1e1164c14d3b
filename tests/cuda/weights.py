"""Random weights, rows and comparisons for tests of kernels."""

from __future__ import annotations

import gguf
import numpy as np

QUANTISED = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS".split()
FLOATS = ["F32", "F16", "BF16"]
# Byte offsets of each block's float16 scales.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "IQ4_NL": [0],
    "MXFP4": [],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_XS": [0],
}


def block_size(type_name: str) -> int:
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][0])


def block_bytes(type_name: str) -> int:
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][1])


def random_weights(rng: np.random.Generator, type_name: str, rows: int, k: int) -> np.ndarray:
    """Random bits in every field, scales of ordinary size: uint8 [rows, row bytes]."""
    if type_name == "F32":
        return rng.standard_normal((rows, k)).astype(np.float32).view(np.uint8)
    if type_name == "F16":
        return rng.standard_normal((rows, k)).astype(np.float16).view(np.uint8)
    if type_name == "BF16":
        bits = rng.standard_normal((rows, k)).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, k // block_size(type_name), block_bytes(type_name)), dtype=np.uint8)
    for offset in SCALES[type_name]:
        scales = (rng.standard_normal(blocks.shape[:2]) * 0.01).astype(np.float16)
        blocks[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    if type_name == "MXFP4":
        blocks[..., 0] = rng.integers(118, 126, blocks.shape[:2])
    return blocks.reshape(rows, -1)


def random_rows(rng: np.random.Generator, n_rows: int, n: int) -> np.ndarray:
    """Rows of different magnitude with outliers: float32 [n_rows, n]."""
    x = rng.standard_normal((n_rows, n)) * 10.0 ** rng.integers(-1, 2, (n_rows, 1))
    x[rng.random((n_rows, n)) < 0.01] *= 30.0
    return x.astype(np.float32)


def assert_same_bits(got: np.ndarray, want: np.ndarray, what: object = "") -> None:
    """Equal bits; any two NaNs are equal."""
    assert got.shape == want.shape, (what, got.shape, want.shape)
    if got.dtype != np.float32:
        np.testing.assert_array_equal(got, want, err_msg=str(what))
        return
    wrong = (got.view(np.uint32) != want.view(np.uint32)) & ~(np.isnan(got) & np.isnan(want))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(f"{what}: {wrong.sum()} of {wrong.size} differ, first {at}: {got[at]!r}, not {want[at]!r}")
