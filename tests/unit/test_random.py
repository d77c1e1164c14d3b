"""The counter-based generator and the Gumbel noise made from it."""

import math
from fractions import Fraction

import numpy as np
import pytest
from expertree._core import _testing
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_oracle import chi_square_z

ALL_ONES = 2**64 - 1


def tokens(n, first=0):
    return np.arange(first, first + n, dtype=np.int32)


# Known answers of the Random123 library, tests/kat_vectors: counter, key, result.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, result):
    assert _testing.philox4x32_10(counter, key) == result


@given(st.integers(0, ALL_ONES), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_random_bits_are_keyed_as_documented(seed, position, token):
    low, high = 2**32 - 1, 32
    words = _testing.philox4x32_10([token >> 1, 0, position & low, position >> high], [seed & low, seed >> high])
    first = 2 * (token & 1)
    expected = words[first] | words[first + 1] << 32
    assert int(_testing.random_bits(seed, position, np.array([token], np.int32))[0]) == expected


def test_uniform_is_never_0_or_1():
    edges = np.array([0, 1, 2**63 - 1, 2**63, ALL_ONES - 2**39, ALL_ONES - 2**38, ALL_ONES - 1, ALL_ONES], np.uint64)
    u = _testing.uniform_from_bits(edges)
    assert (u > 0).all()
    assert (u < 1).all()
    assert u[0] == 2.0**-65
    assert u[-1] == 1 - 2.0**-24
    assert _testing.uniform_from(1, 2, 3) == _testing.uniform_from_bits(
        _testing.random_bits(1, 2, np.array([3], np.int32))
    )


def uniforms(seed, position, n):
    return _testing.uniform_from_bits(_testing.random_bits(seed, position, tokens(n))).astype(np.float64)


def test_uniform_is_uniform():
    u = uniforms(seed=1, position=0, n=1 << 20)
    counts = np.histogram(u, 256, (0, 1))[0]
    assert abs(chi_square_z(counts, np.full(256, 1 / 256))) < 4
    bits = _testing.random_bits(1, 0, tokens(1 << 18))
    for i in range(64):  # every bit is a fair coin
        ones = int(np.sum((bits >> np.uint64(i)) & np.uint64(1)))
        assert abs(ones - bits.size / 2) < 5 * math.sqrt(bits.size) / 2, f"bit {i}"


@pytest.mark.parametrize("dimension", ["token", "position", "position high", "seed", "seed high"])
def test_neighbouring_keys_are_independent(dimension):
    n = 1 << 16
    if dimension == "token":
        u = uniforms(3, 7, 2 * n)
        a, b = u[:-1], u[1:]
    else:
        seed, position = {
            "position": (3, 8),
            "position high": (3, 7 + 2**32),
            "seed": (4, 7),
            "seed high": (3 + 2**32, 7),
        }[dimension]
        a, b = uniforms(3, 7, n), uniforms(seed, position, n)
    assert (a == b).mean() < 1e-3
    pairs = np.histogram2d(a, b, 16, ((0, 1), (0, 1)))[0].ravel()
    assert abs(chi_square_z(pairs, np.full(256, 1 / 256))) < 4
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(a.size)


def test_one_token_over_positions_is_uniform():
    u = np.array([_testing.uniform_from(11, position, 5) for position in range(40_000)])
    assert abs(chi_square_z(np.histogram(u, 64, (0, 1))[0], np.full(64, 1 / 64))) < 4
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / math.sqrt(u.size)


def test_draw_seed_differs_every_time():
    seeds = {_testing.draw_seed() for _ in range(200)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**64 for seed in seeds)


# ---- Gumbel noise ----


def exact_gumbel(bits):
    u = Fraction(2 * bits + 1, 2**65)
    exponential = -math.log(float(u)) if u < Fraction(3, 4) else -math.log1p(-float(1 - u))
    return -math.log(exponential)


def awkward_bits():
    rng = np.random.default_rng(5)
    random_bits = [int(b) for b in rng.integers(0, ALL_ONES, 20_000, dtype=np.uint64, endpoint=True)]
    tails = [1 << i for i in range(64)] + [ALL_ONES - (1 << i) for i in range(64)] + list(range(8))
    tails += [ALL_ONES - i for i in range(8)]
    around = [3 * 2**62 + d for d in (-(2**40), -1, 0, 1, 2**40)]
    near_zero_noise = [int(math.exp(-1) * 2**64) + d * 2**38 for d in range(-50, 50)]
    return random_bits + tails + around + near_zero_noise


def test_gumbel_accuracy(record_property):
    bits = awkward_bits()
    got = _testing.gumbel_from_bits(np.array(bits, np.uint64)).astype(np.float64)
    exact = np.array([exact_gumbel(b) for b in bits])
    error = np.abs(got - exact) / np.maximum(np.abs(exact), 1)
    record_property("worst_error", float(error.max()))
    print(f"worst error {error.max():.3g} of max(1, |G|)")
    assert error.max() < 2.5e-7


def test_gumbel_range_and_tails_keep_their_resolution():
    lowest, highest = _testing.gumbel_from_bits(np.array([0, ALL_ONES], np.uint64))
    assert lowest == pytest.approx(-math.log(65 * math.log(2)), abs=1e-5)
    assert highest == pytest.approx(65 * math.log(2), abs=1e-4)
    # Neighbouring 40-bit uniforms at the very top: distinct values, in order.
    top = np.array([ALL_ONES - (i << 24) for i in range(1000, 0, -1)], np.uint64)
    noise = _testing.gumbel_from_bits(top)
    assert (np.diff(noise) > 0).all()
    bottom = np.array([i << 24 for i in range(1, 200)], np.uint64)
    assert (np.diff(_testing.gumbel_from_bits(bottom)) > 0).all()


def test_gumbel_upper_bound_holds():
    bits = np.array(awkward_bits(), np.uint64)
    assert (_testing.gumbel_upper_bound(bits) >= _testing.gumbel_from_bits(bits)).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, ALL_ONES), min_size=1, max_size=50))
def test_gumbel_upper_bound_holds_anywhere(values):
    bits = np.array(values, np.uint64)
    noise = _testing.gumbel_from_bits(bits)
    assert np.isfinite(noise).all()
    assert (_testing.gumbel_upper_bound(bits) >= noise).all()


def test_gumbel_follows_its_distribution():
    noise = np.sort(_testing.gumbel_noise(21, 3, tokens(1 << 19)).astype(np.float64))
    cdf = np.exp(-np.exp(-noise))
    ranks = (np.arange(noise.size) + 0.5) / noise.size
    assert np.abs(cdf - ranks).max() * math.sqrt(noise.size) < 2.2  # Kolmogorov-Smirnov, p about 1e-4
    # The far tail, which decides between likely and unlikely tokens: P(G > g) is close to e^-g.
    for g in (6, 8, 10):
        expected = noise.size * math.exp(-g)
        assert abs((noise > g).sum() - expected) < 5 * math.sqrt(expected) + 1


def test_noise_is_pinned():
    """The noise decides the text of every seed: a change breaks the reproducibility of all seeds."""
    got = _testing.gumbel_noise(42, 100, np.array([0, 1, 2, 151_935], np.int32))
    expected = "0x1.9d7e080000000p+0 0x1.29df1c0000000p-3 0x1.8c5b2c0000000p-2 -0x1.b71fa40000000p-1"
    assert [float(v).hex() for v in got] == expected.split()
