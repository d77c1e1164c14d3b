"""The best logits of each row."""

from __future__ import annotations

from ctypes import c_int64

import numpy as np
import pytest
from kernels import CudaError, device, load
from weights import assert_same_bits


def top_k(
    logits: np.ndarray, k: int, ask: bool = True, there: int | None = None
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Values, ids, and whether some logit is NaN or +inf. there: rows that there are."""
    n_rows, n = logits.shape
    size = load().et_top_k_scratch_bytes
    size.restype = c_int64
    with device() as on:
        values, ids = on.alloc(n_rows * k * 4), on.alloc(n_rows * k * 4)
        scratch = on.alloc(size(c_int64(n_rows), c_int64(n), k))
        flag = on.put(np.zeros(1, np.int32))
        not_sound = flag if ask else None
        n_there = None if there is None else on.put(np.array([there], np.int32))
        on.run("top_k", on.put(logits), c_int64(n_rows), c_int64(n), k, values, ids, not_sound, scratch, n_there)
        return on.get(values, (n_rows, k)), on.get(ids, (n_rows, k), np.int32), bool(on.get(flag, (1,), np.int32)[0])


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 7), (300, 40), (2048, 5), (2049, 1024), (9000, 64), (20000, 1024)])
def test_top_k(n: int, k: int, order: str) -> None:
    rng = np.random.default_rng(n)
    logits = rng.standard_normal((2, n)).astype(np.float32)
    logits[1] = np.round(logits[1] * 4)  # ties, and zeros of both signs
    values, ids, not_sound = top_k(logits, k)
    assert not not_sound
    for row in range(2):
        want = np.argsort(-logits[row], kind="stable")[:k]
        np.testing.assert_array_equal(ids[row], want)
        assert_same_bits(values[row], logits[row][want])


def test_special_values(order: str) -> None:
    logits = np.array([[np.nan, -np.inf, 0.0, -0.0, np.inf, -1.0, -np.nan, 1e-45]], np.float32)
    _, ids, not_sound = top_k(logits, 8)
    assert not_sound and not top_k(logits, 8, ask=False)[2]
    assert ids[0].tolist() == [4, 7, 2, 3, 5, 1, 0, 6]


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, np.finfo(np.float32).max])
def test_one_logit_that_is_no_number_is_told(value: float) -> None:
    """Wherever it is, in rows of several pieces, also when it is not among the best."""
    for at in (0, 2047, 2048, 4999):
        logits = np.zeros((3, 5000), np.float32)
        logits[1, at] = value
        assert top_k(logits, 1)[2] == (not value <= np.finfo(np.float32).max)


def test_rows_that_are_not_there_are_not_looked_at() -> None:
    logits = np.zeros((3, 5000), np.float32)
    logits[1:] = np.nan
    logits[0, 4321] = 1.0
    _, ids, not_sound = top_k(logits, 2, there=1)
    assert not not_sound and ids[0].tolist() == [4321, 0]


def test_what_k_cannot_be() -> None:
    logits = np.zeros((1, 2000), np.float32)
    for k in (0, 1025, 2001):
        with pytest.raises(CudaError):
            top_k(logits, k)
