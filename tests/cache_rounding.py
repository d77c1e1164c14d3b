"""numpy's own rounding of keys and values (canonical.h, C14)."""

from __future__ import annotations

import numpy as np


def rounded(kind: str, x: np.ndarray) -> np.ndarray:
    """What a cache of that kind (f32, f16, q8_0) gives back of float32 rows x (n, dim)."""
    if kind == "f32":
        return x
    if kind == "f16":
        return x.astype(np.float16).astype(np.float32)
    n, dim = x.shape
    blocks = np.zeros((n, -(-dim // 32) * 32), np.float32)
    blocks[:, :dim] = x
    blocks = blocks.reshape(n, -1, 32)
    amax = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(amax == 0, np.float32(0), np.float32(127) / amax)
    q = np.clip(np.rint(blocks * inverse), -127, 127) + np.float32(0)  # no -0
    d = (amax / np.float32(127)).astype(np.float16).astype(np.float32)
    return np.asarray((q * d).reshape(n, -1)[:, :dim], np.float32)
