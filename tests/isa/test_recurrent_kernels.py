"""Causal convolution and gated delta rule: the scalar kernels against numpy, the others against the scalar ones bit by
bit; and the order in which a tree is scanned."""

from __future__ import annotations

import math

import numpy as np
import pytest
from expertree._core import _testing
from hypothesis import given
from hypothesis import strategies as st

WIDTHS = (1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, 130)


@pytest.fixture(params=["avx2", "avx512", "neon", "dotprod"])
def isa(request: pytest.FixtureRequest) -> str:
    if request.param not in _testing.isa_names():
        pytest.skip(f"{request.param}: this build or this CPU has no such kernels")
    return str(request.param)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def assert_same_bits(got: np.ndarray, want: np.ndarray, what: str) -> None:
    assert got.shape == want.shape
    assert (got.view(np.uint32) == want.view(np.uint32)).all(), f"{what}: off by up to {np.abs(got - want).max()}"


def scan_case(n_rows: int, n_keys: int, n_values: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """state, k, q, v, decay, beta; keys of unit length, as the model's are."""
    k, q = normal(seed + 1, n_rows, n_keys), normal(seed + 2, n_rows, n_keys)
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    decay = np.random.default_rng(seed).uniform(0.5, 1, n_rows).astype(np.float32)
    beta = np.random.default_rng(seed + 9).uniform(0, 1, n_rows).astype(np.float32)
    return normal(seed, n_keys, n_values), k, q, normal(seed + 3, n_rows, n_values), decay, beta


@pytest.mark.parametrize("n_taps", [1, 2, 3, 4, 7])
def test_convolve(isa: str, n_taps: int) -> None:
    for n in WIDTHS:
        x, w = normal(1, n_taps, n), normal(2, n_taps, n)
        want = _testing.convolve("scalar", x, w)
        assert np.abs(want - (x.astype(np.float64) * w).sum(0)).max() < 1e-5
        assert_same_bits(_testing.convolve(isa, x, w), want, f"{n_taps} taps, width {n}")


@pytest.mark.parametrize("n_keys", [1, 16, 19, 128])
def test_scan_against_numpy(n_keys: int) -> None:
    state, k, q, v, decay, beta = scan_case(9, n_keys, 21)
    moved, out = _testing.delta_scan("scalar", state, 0, k, q, v, decay, beta)
    exact = state.astype(np.float64)
    for t in range(9):
        exact *= decay[t]
        exact += np.outer(k[t], beta[t] * (v[t] - k[t] @ exact))
        assert np.abs(out[t] - q[t] @ exact).max() < 1e-4
    assert np.abs(moved - exact).max() < 1e-5


@pytest.mark.parametrize("n_values", WIDTHS)
def test_scan(isa: str, n_values: int) -> None:
    for n_keys in (1, 16, 19, 128):
        for n_rows in (0, 1, 2, 5):
            case = scan_case(n_rows, n_keys, n_values)
            want = _testing.delta_scan("scalar", case[0], 0, *case[1:])
            got = _testing.delta_scan(isa, case[0], 0, *case[1:])
            assert_same_bits(got[0], want[0], f"state, {n_keys} keys, {n_values} values, {n_rows} rows")
            assert_same_bits(got[1], want[1], f"output, {n_keys} keys, {n_values} values, {n_rows} rows")
            silent = _testing.delta_scan(isa, case[0], 0, *case[1:], put_out=False)
            assert_same_bits(silent[0], want[0], "state without output")


def test_scan_moves_its_own_columns_only(isa: str) -> None:
    state, k, q, v, decay, beta = scan_case(4, 16, 37)
    wide = normal(8, 16, 70)
    wide[:, 5:42] = state
    got, out = _testing.delta_scan(isa, wide, 5, k, q, v, decay, beta)
    want, want_out = _testing.delta_scan("scalar", state, 0, k, q, v, decay, beta)
    assert_same_bits(np.ascontiguousarray(got[:, 5:42]), want, "the columns")
    assert_same_bits(out, want_out, "their output")
    got[:, 5:42] = wide[:, 5:42]
    assert_same_bits(got, wide, "the others")


def test_scan_in_pieces(isa: str) -> None:
    """Rows in one call or in several, columns together or apart: the same bits."""
    state, k, q, v, decay, beta = scan_case(7, 24, 40)
    want, want_out = _testing.delta_scan("scalar", state, 0, k, q, v, decay, beta)
    got, outs = state, []
    for rows in (slice(0, 3), slice(3, 4), slice(4, 7)):
        got, out = _testing.delta_scan(isa, got, 0, k[rows], q[rows], v[rows], decay[rows], beta[rows])
        outs.append(out)
    assert_same_bits(got, want, "state")
    assert_same_bits(np.concatenate(outs), want_out, "output")
    part, part_out = _testing.delta_scan(isa, state, 8, k, q, np.ascontiguousarray(v[:, 8:21]), decay, beta)
    assert_same_bits(np.ascontiguousarray(part[:, 8:21]), np.ascontiguousarray(want[:, 8:21]), "a part of the columns")
    assert_same_bits(part_out, np.ascontiguousarray(want_out[:, 8:21]), "its output")


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n)))))
def test_tree_scan(parents: tuple[int, ...]) -> None:
    """Every row once, each after its parent, from the state that its parent left; few states at a time."""
    order, segments, n_slots = _testing.tree_scan(list(parents))
    assert sorted(order) == list(range(len(parents)))
    slots: dict[int, int] = {-1: -1}  # slot: the row whose state it holds
    at = 0
    for begin, end, source, keep in segments:
        assert begin == at < end and keep < n_slots
        row = slots[source]
        for i in range(begin, end):
            assert parents[order[i]] == row
            row = order[i]
        if keep >= 0:
            slots[keep] = row
        at = end
    assert at == len(parents)
    assert n_slots <= math.log2(len(parents)) + 1
