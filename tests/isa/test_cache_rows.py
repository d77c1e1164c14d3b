"""Keys and values in F16 and Q8_0 (canonical.h, C14): how rows are written, and attention over them, on every
instruction set. The oracle is numpy's rounding and the scalar kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_rounding import rounded
from expertree import UnsupportedError
from expertree._core import _testing

TYPES = ("f32", "f16", "q8_0")
PAIRS = [("f16", "f16"), ("q8_0", "q8_0"), ("f16", "f32"), ("f32", "q8_0"), ("q8_0", "f16")]
DIMS = (1, 7, 16, 17, 24, 31, 32, 33, 48, 64, 80, 128, 200)


@pytest.fixture(params=_testing.isa_names())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([n, dim, seed])
    x = rng.standard_normal((n, dim)) * 2.0 ** rng.integers(-6, 7, (n, 1))
    return x.astype(np.float32)


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    return got.shape == want.shape and bool((got.view(np.uint32) == want.view(np.uint32)).all())


def attend(isa: str, q: np.ndarray, k: np.ndarray, v: np.ndarray | None, **options: Any) -> np.ndarray:
    tail = options.pop("tail", np.zeros(0, np.int32))
    n_prefix = options.pop("n_prefix", len(k))
    return np.asarray(_testing.attend(isa, q, k, v, n_prefix, tail, 0.25, **options))


def test_rows_are_written_alike(isa: str) -> None:
    """The bytes of the plain kernels, for rows of any size, zeros, subnormals and what rounds between two halves."""
    for dim in DIMS:
        x = rows(5, dim)
        x[1] = 0.0
        x[2] *= np.float32(1e-7)
        x[3] = np.float32(1.0) + np.arange(dim, dtype=np.float32) * np.float32(2.0**-11)  # ties of binary16
        for kind in TYPES:
            np.testing.assert_array_equal(
                _testing.write_cache_rows(isa, kind, x), _testing.write_cache_rows("scalar", kind, x), f"{kind} {dim}"
            )


def test_what_rows_hold() -> None:
    x = rows(6, 75)
    assert _testing.write_cache_rows("scalar", "f32", x).tobytes() == x.tobytes()
    assert _testing.write_cache_rows("scalar", "f16", x).tobytes() == x.astype(np.float16).tobytes()
    blocks = _testing.write_cache_rows("scalar", "q8_0", x).reshape(6, 3, 34)  # the third block holds 11 elements
    d = blocks[:, :, :2].copy().view(np.float16).astype(np.float32)
    values = (d * blocks[:, :, 2:].view(np.int8)).reshape(6, 96)
    assert not values[:, 75:].any()
    assert same_bits(values[:, :75].copy(), rounded("q8_0", x))
    amax = np.abs(x).max(1, keepdims=True)
    assert (np.abs(values[:, :75] - x) <= amax / 127 * 0.6).all() and np.abs(values[:, :75] - x).max() > 0


@pytest.mark.parametrize(("k_type", "v_type"), PAIRS)
def test_attention_is_that_of_the_rounded_rows(isa: str, k_type: str, v_type: str) -> None:
    """Exactly what F32 cells with the rounded values give, for any head size, number of heads and of positions."""
    for dim in DIMS:
        for n in (1, 31, 33, 70):
            q, k, v = rows(7, dim, 1), rows(n, dim, 2), rows(n, dim + 9, 3)
            want = attend("scalar", q, rounded(k_type, k), rounded(v_type, v))
            for heads in (1, 2, 4, 7):
                got = attend(isa, q[:heads], k, v, k_type=k_type, v_type=v_type)
                assert same_bits(got, want[:heads]), f"{dim} {n} positions, {heads} heads"


@pytest.mark.parametrize("kind", TYPES)
def test_values_that_are_the_keys(isa: str, kind: str) -> None:
    """Latent attention: the values are the first elements of the keys."""
    for dim_k, dim_v, n in ((24, 16, 40), (40, 32, 100), (576, 512, 33)):
        q, k = rows(5, dim_k, 1), rows(n, dim_k, 2)
        kept = rounded(kind, k)
        want = attend("scalar", q, kept, np.ascontiguousarray(kept[:, :dim_v]))
        assert same_bits(attend(isa, q, k, None, k_type=kind, dim_v=dim_v), want)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_scattered_cells(isa: str, kind: str) -> None:
    """Tails in any cells, a first position, sinks and a soft cap."""
    rng = np.random.default_rng(3)
    for n, n_prefix in ((40, 0), (100, 33), (100, 99), (65, 20)):
        q, k, v = rows(6, 40, 1), rows(n, 40, 2), rows(n, 40, 3)
        cells = n_prefix + rng.permutation(n + 25 - n_prefix)[: n - n_prefix].astype(np.int32)
        k_cells, v_cells = (np.full((n + 25, 40), np.nan, np.float32) for _ in range(2))
        k_cells[:n_prefix], v_cells[:n_prefix] = k[:n_prefix], v[:n_prefix]
        k_cells[cells], v_cells[cells] = k[n_prefix:], v[n_prefix:]
        options = {"first": n // 3, "softcap": 5.0, "sinks": np.linspace(-9, 9, 6, dtype=np.float32)}
        want = attend("scalar", q, rounded(kind, k), rounded(kind, v), **options)
        got = attend(isa, q, k_cells, v_cells, n_prefix=n_prefix, tail=cells, k_type=kind, v_type=kind, **options)
        assert same_bits(got, want)


@pytest.mark.parametrize("heads", [1, 3, 9, 20, 70])
def test_rows_together(isa: str, heads: int) -> None:
    """Rows that end and begin at different positions share what is decoded; each is as if it were alone."""
    lengths = np.array([100, 101, 102, 103, 104, 105, 106, 107, 40, 33, 99], np.int32)
    q = rows(len(lengths) * heads, 40).reshape(len(lengths), heads, 40)
    k, v = rows(110, 40, 1), rows(110, 24, 2)
    for window in (1, 5, 37, 64, 1000):
        first = np.maximum(lengths - window, 0).astype(np.int32)
        for kind in ("f16", "q8_0"):
            got = _testing.attend_rows(isa, q, k, v, lengths, first, 0.25, k_type=kind, v_type=kind)
            got = np.asarray(got).reshape(len(lengths), heads, 24)
            for r, length in enumerate(lengths):
                seen = slice(first[r], length)
                want = attend("scalar", q[r], rounded(kind, k[seen]), rounded(kind, v[seen]))
                assert same_bits(got[r], want), f"row {r}, window {window}, {kind}"


@pytest.mark.parametrize("heads", [1, 8])
def test_rows_of_a_tree_together(isa: str, heads: int) -> None:
    """The same positions of different rows in different cells: each row has its own decoded, at values as at keys."""
    rng = np.random.default_rng(5)
    q = rows(10 * heads, 40).reshape(10, heads, 40)
    k, v = rows(120, 40, 1), rows(120, 24, 2)
    for length, n_tail in ((60, 1), (63, 5), (64, 7), (1, 40)):
        lengths, first = np.full(10, length, np.int32), np.zeros(10, np.int32)
        tails = np.stack([length + rng.permutation(120 - length)[:n_tail] for _ in range(10)]).astype(np.int32)
        tails[4:6] = tails[3]  # some of them are the same
        for kind in TYPES:
            got = _testing.attend_rows(isa, q, k, v, lengths, first, 0.25, k_type=kind, v_type=kind, tails=tails)
            got = np.asarray(got).reshape(10, heads, 24)
            for r in range(10):
                seen = [*range(length), *tails[r]]
                want = attend("scalar", q[r], rounded(kind, k[seen]), rounded(kind, v[seen]))
                assert same_bits(got[r], want), f"row {r}, {length} and {n_tail} cells, {kind}"


def test_what_is_not_finite_stays_visible(isa: str) -> None:
    for special in (np.inf, -np.inf, np.nan):
        for kind in ("f16", "q8_0"):
            q, k, v = rows(4, 40, 1), rows(50, 40, 2), rows(50, 40, 3)
            v[33, 5] = special
            got = attend(isa, q, k, v, k_type=kind, v_type=kind)
            assert same_bits(got, attend("scalar", q, k, v, k_type=kind, v_type=kind))
            assert not np.isfinite(got[:, 5]).any()


def test_what_does_not_fit_is_refused() -> None:
    """Never stored as infinity: a key of minus infinity would silently drop its position."""
    x = np.full((1, 40), 65519.0, np.float32)
    assert np.isfinite(_testing.write_cache_rows("scalar", "f16", x).view(np.float16)).all()
    for kind, value in (("f16", 65520.0), ("f16", -1e30), ("q8_0", 1e7)):
        with pytest.raises(UnsupportedError, match=rf"does not fit a KV cache of {kind}.*--cache-type f32"):
            _testing.write_cache_rows("scalar", kind, np.full((1, 40), value, np.float32))
