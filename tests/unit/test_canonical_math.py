"""exp, log and SiLU of the canonical arithmetic: accuracy, special values, and the very bits (contract X3).

Reference: numpy in binary64. Errors are in units of the last place of the true value's binade.
"""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from expertree._core import _testing

EXP_LOWEST = np.float32(float.fromhex("-0x1.5d589ep+6"))
EXP_HIGHEST = np.float32(float.fromhex("0x1.62e42ep+6"))  # the largest float whose exp is finite
INF = np.float32(np.inf)


def f32(values):
    return np.ascontiguousarray(values, np.float32)


def ulp_errors(got, true):
    exponent = np.maximum(np.frexp(true)[1] - 24, -149)
    return np.abs(got.astype(np.float64) - true) / np.ldexp(1.0, exponent)


def worst(got, true, inputs, record_property):
    errors = ulp_errors(got, true)
    i = int(np.argmax(errors))
    record_property("worst_ulp", float(errors[i]))
    record_property("at", float(inputs[i]).hex())
    print(f"worst {errors[i]:.4f} ulp at {float(inputs[i]).hex()}")
    return errors[i]


def exp_inputs():
    rng = np.random.default_rng(0)
    sweep = np.linspace(EXP_LOWEST, EXP_HIGHEST, 3_000_001)
    multiples = np.arange(-126, 129) * np.log(2.0)  # where n and the sign of r change: between them, at n + 1/2
    edges = np.concatenate([multiples, multiples + np.log(2.0) / 2])
    near_edges = (edges[:, None] * (1 + np.linspace(-2e-6, 2e-6, 41))).ravel()
    small = rng.choice([-1, 1], 300_000) * 2.0 ** rng.uniform(-60, 1, 300_000)
    x = f32(np.concatenate([sweep, near_edges, small, [EXP_LOWEST, EXP_HIGHEST]]))
    return x[(x >= EXP_LOWEST) & (x <= EXP_HIGHEST)]


def test_exp_is_within_one_ulp(record_property):
    x = exp_inputs()
    assert worst(_testing.canonical_exp(x), np.exp(x.astype(np.float64)), x, record_property) < 0.95


def test_exp_special_values():
    below = np.nextafter(EXP_LOWEST, -INF)
    above = np.nextafter(EXP_HIGHEST, INF)
    x = f32([0.0, -0.0, 1e-45, -1e-45, above, 89, 1e30, INF, below, -104, -1e30, -INF])
    expected = f32([1, 1, 1, 1, INF, INF, INF, INF, 0, 0, 0, 0])
    got = _testing.canonical_exp(x)
    assert (got.view(np.uint32) == expected.view(np.uint32)).all()
    assert np.isnan(_testing.canonical_exp(f32([np.nan, -np.nan]))).all()
    lowest, highest = _testing.canonical_exp(f32([EXP_LOWEST, EXP_HIGHEST]))
    assert lowest >= np.finfo(np.float32).tiny
    assert np.isfinite(highest)


def test_exp_never_gives_a_subnormal():
    x = f32(np.linspace(-88, -87, 2_000_001))
    got = _testing.canonical_exp(x)
    assert ((got == 0) | (got >= np.finfo(np.float32).tiny)).all()
    assert ((got == 0) == (x < EXP_LOWEST)).all()


def log_inputs():
    rng = np.random.default_rng(1)
    any_positive = rng.integers(1, 0x7F800000, 2_000_000, dtype=np.uint32).view(np.float32)
    near_one = np.linspace(0.5, 2.1, 2_000_001)
    closest_to_one = 1 + rng.choice([-1, 1], 200_000) * 2.0 ** rng.uniform(-24, -1, 200_000)
    subnormal = rng.integers(1, 0x00800000, 200_000, dtype=np.uint32).view(np.float32)
    powers = 2.0 ** np.arange(-149, 128)
    root = np.sqrt(0.5) * powers[:-1]
    near_root = (root[:, None] * (1 + np.linspace(-1e-6, 1e-6, 21))).ravel()
    x = f32(np.concatenate([any_positive, near_one, closest_to_one, subnormal, powers, near_root]))
    return x[(x > 0) & np.isfinite(x) & (x != 1)]


def test_log_is_within_one_ulp(record_property):
    x = log_inputs()
    assert worst(_testing.canonical_log(x), np.log(x.astype(np.float64)), x, record_property) < 0.95


def test_log_special_values():
    got = _testing.canonical_log(f32([1.0, 0.0, -0.0, INF]))
    expected = f32([0.0, -INF, -INF, INF])
    assert (got.view(np.uint32) == expected.view(np.uint32)).all()
    assert np.isnan(_testing.canonical_log(f32([-1e-45, -1.0, -INF, np.nan, -np.nan]))).all()


def test_silu_accuracy(record_property):
    rng = np.random.default_rng(2)
    any_size = rng.choice([-1, 1], 300_000) * 2.0 ** rng.uniform(-100, 6, 300_000)
    x = f32(np.concatenate([np.linspace(-87, 87, 2_000_001), any_size]))
    x = x[x != 0]
    exact = x.astype(np.float64)
    assert worst(_testing.canonical_silu(x), exact / (1 + np.exp(-exact)), x, record_property) < 2.5


def test_silu_special_values():
    x = f32([0.0, -0.0, INF, 3e38, -INF, -3e38, -89])
    expected = f32([0.0, -0.0, INF, 3e38, -0.0, -0.0, -0.0])
    assert (_testing.canonical_silu(x).view(np.uint32) == expected.view(np.uint32)).all()
    assert np.isnan(_testing.canonical_silu(f32([np.nan]))).all()
    x = f32(np.linspace(-110, -80, 100_001))
    y = _testing.canonical_silu(x)
    true = x / (1 + np.exp(-x.astype(np.float64)))
    assert (y <= 0).all()
    assert np.abs(y - true).max() < 1e-33


# ---- the bits: an exact re-computation of the written steps, and digests of long sweeps ----


def to_f32(value):
    """Fraction -> binary32, round to nearest even, for normal and zero results."""
    if value == 0:
        return Fraction(0)
    sign, value = (-1, -value) if value < 0 else (1, value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    assert -126 <= exponent <= 127
    unit = Fraction(2) ** (exponent - 23)
    return sign * round(value / unit) * unit  # Python rounds ties to even


def hexes(*texts):
    return [Fraction(float.fromhex(text)) for text in texts]


LN2_HIGH, LN2_LOW, LOG2E = hexes("0x1.62e43p-1", "-0x1.05c61p-29", "0x1.715476p+0")
EXP_POLY = hexes("0x1.6a524ep-10", "0x1.12396ep-7", "0x1.5558aap-5", "0x1.555492p-3", "0x1.fffffcp-2", "0x1p0", "0x1p0")
LOG_POLY = hexes(
    "-0x1.38ca52p-4", "0x1.055fdcp-3", "-0x1.0d82acp-3", "0x1.22d91cp-3",
    "-0x1.547282p-3", "0x1.99a01cp-3", "-0x1.000226p-2", "0x1.555554p-2",
)  # fmt: skip


def horner(coefficients, x):
    p = coefficients[0]
    for c in coefficients[1:]:
        p = to_f32(p * x + c)
    return p


def exact_exp(x):
    n = round(x * LOG2E)
    r = to_f32(x - n * LN2_HIGH)
    r = to_f32(r - n * LN2_LOW)
    return to_f32(horner(EXP_POLY, r) * Fraction(2) ** n)


def exact_log(x):
    e = x.numerator.bit_length() - x.denominator.bit_length()
    root = Fraction(float(np.uint32(0x3F3504F3).view(np.float32)))
    while x / Fraction(2) ** e >= 2 * root:
        e += 1
    while x / Fraction(2) ** e < root:
        e -= 1
    f = x / Fraction(2) ** e - 1
    f2 = to_f32(f * f)
    tail = to_f32(to_f32(f2 * f) * horner(LOG_POLY, f) + to_f32(e * LN2_LOW))
    tail = to_f32(tail - f2 / 2)
    return to_f32(e * LN2_HIGH + to_f32(f + tail))


def test_exp_follows_the_written_steps():
    rng = np.random.default_rng(3)
    x = f32(np.concatenate([rng.uniform(-87, 88.7, 600), rng.normal(size=300)]))
    got = _testing.canonical_exp(x)
    expected = f32([float(exact_exp(Fraction(float(v)))) for v in x])
    assert (got == expected).all()


def test_log_follows_the_written_steps():
    rng = np.random.default_rng(4)
    near_one = np.concatenate([rng.uniform(0.5, 2, 400), 1 + 2.0 ** rng.uniform(-20, -2, 100)])
    x = f32(np.concatenate([2.0 ** rng.uniform(-126, 127, 400), near_one]))
    got = _testing.canonical_log(x)
    expected = f32([float(exact_log(Fraction(float(v)))) for v in x])
    assert (got == expected).all()


def pinned_inputs():
    """Fixed bit patterns. Dense where the arithmetic works, and around the ties of step 2 of exp, where a step rounded
    twice instead of once shows."""

    def patterns(first, last, step):
        return np.arange(first, last, step, dtype=np.int64).astype(np.uint32)

    everything = patterns(0, 1 << 32, 4099)  # all binades, both signs, subnormals, infinities, NaN
    exp_range = patterns(0x39800000, 0x42B30000, 61)  # 2^-12 to 89.5
    log_range = patterns(0x3F000000, 0x40000000, 7)  # 1/2 to 2
    ties = f32((np.arange(-126, 129) + 0.5) * np.log(2.0)).view(np.uint32)
    near_ties = (ties[:, None] + np.arange(-12, 13).astype(np.uint32)).ravel()
    parts = [everything, exp_range, exp_range | np.uint32(1 << 31), log_range, near_ties]
    return np.concatenate(parts).view(np.float32)


# Any change here changes every model's output: it must be deliberate, and every instruction set must follow.
DIGESTS = {
    "canonical_exp": "79fe14f52bdc6018",
    "canonical_log": "a6252d724fbe77c8",
    "canonical_silu": "cd9f0df96142bf3d",
}


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_bits_are_pinned(name):
    y = getattr(_testing, name)(pinned_inputs())
    y[np.isnan(y)] = np.float32(np.nan)  # which NaN is outside the contract
    assert hashlib.sha256(y.tobytes()).hexdigest()[:16] == DIGESTS[name]
