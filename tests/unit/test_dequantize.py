"""Reference decoding and encoding of every element format, and the small float conversions.

Oracle: tests/conformance/dequant/TYPE.npz, made with ggml (see the README of the conformance set).
"""

from pathlib import Path

import numpy as np
import pytest
from expertree._core import _testing
from expertree.errors import Error, InvalidRequestError
from hypothesis import given, settings
from hypothesis import strategies as st

VECTORS = Path(__file__).parent.parent / "conformance" / "dequant"
TABLE = {row["name"]: row for row in _testing.dtype_table()}
WITH_VECTORS = sorted(set(TABLE) - {"F32"})
BLOCK_FORMATS = [name for name in WITH_VECTORS if TABLE[name]["block_size"] > 1]


def bits(values):
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def assert_same_bits(got, expected):
    different = np.flatnonzero(bits(got).ravel() != bits(expected).ravel())
    if different.size:
        i = different[0]
        pytest.fail(
            f"{different.size} elements differ; first at {i}: got {got.ravel()[i].hex()}, "
            f"expected {expected.ravel()[i].hex()}"
        )


def rms(values):
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def test_table_is_complete():
    expected = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4"
    expected += " IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 NVFP4"
    assert set(TABLE) == set(expected.split())
    assert {row["activation"] for row in TABLE.values()} == {"F32", "Q8_32", "Q8_256"}


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_dequantize_equals_ggml_bit_by_bit(name):
    vectors = np.load(VECTORS / f"{name}.npz")
    assert vectors["raw"].shape[1] == TABLE[name]["block_bytes"]
    assert_same_bits(_testing.dequantize(name, vectors["raw"]), vectors["f32"])
    assert_same_bits(_testing.dequantize(name, vectors["q_raw"]), vectors["q_f32"])


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_dequantize_takes_any_alignment_and_row_length(name):
    vectors = np.load(VECTORS / f"{name}.npz")
    raw = vectors["raw"]
    block_bytes = raw.shape[1]
    for offset in (1, 2, 3):
        buffer = np.zeros(raw.size + offset, np.uint8)
        buffer[offset:] = raw.ravel()
        one_row = buffer[offset:].reshape(1, -1)
        assert_same_bits(_testing.dequantize(name, one_row)[0], vectors["f32"].ravel())
    assert _testing.dequantize(name, np.zeros((0, block_bytes), np.uint8)).shape == (0, TABLE[name]["block_size"])
    assert _testing.dequantize(name, np.zeros((3, 0), np.uint8)).shape == (3, 0)


def test_f32_is_copied():
    values = np.array([[0.0, -0.0, 1.5, np.inf, -np.inf, 1e-45, 3.4e38]], np.float32)
    assert_same_bits(_testing.dequantize("F32", values.view(np.uint8)), values)
    assert_same_bits(_testing.quantize("F32", values).view(np.float32), values)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_incomplete_blocks_and_unknown_names_are_refused(name):
    if TABLE[name]["block_bytes"] > 1:
        with pytest.raises(InvalidRequestError, match=name):
            _testing.dequantize(name, np.zeros((1, TABLE[name]["block_bytes"] + 1), np.uint8))
    if TABLE[name]["block_size"] > 1:
        with pytest.raises(InvalidRequestError, match=name):
            _testing.quantize(name, np.zeros((1, TABLE[name]["block_size"] - 1), np.float32))
    with pytest.raises(Error, match="Q9_Z"):
        _testing.dequantize("Q9_Z", np.zeros((1, 1), np.uint8))


# ---- conversions ----


def test_half_to_float_all_65536():
    half = np.arange(1 << 16, dtype=np.uint16)
    got = _testing.half_to_float(half)
    expected = half.view(np.float16).astype(np.float32)
    nan = np.isnan(expected)
    assert_same_bits(got[~nan], expected[~nan])
    # NaN stays NaN, quiet, with its sign and payload.
    quiet = ((half[nan].astype(np.uint32) & 0x8000) << 16) | 0x7FC00000 | ((half[nan].astype(np.uint32) & 0x3FF) << 13)
    assert (bits(got[nan]) == quiet).all()
    quiet_half = np.where((half & 0x7FFF) > 0x7C00, half | 0x200, half)
    assert (_testing.float_to_half(got) == quiet_half).all()


def interesting_floats(rng, n=400_000):
    random_bits = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    in_half_range = np.ldexp(rng.uniform(-2, 2, n), rng.integers(-28, 18, n)).astype(np.float32)
    # Every half, every midpoint between neighbours, and their neighbours in binary32.
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    midpoints = (half[:-1] + half[1:]) / 2
    edges = np.concatenate([half, midpoints, np.float32([65504, 65519.99, 65520, 65536, 2**-25, 2**-24])])
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))])
    return np.concatenate([random_bits.view(np.float32), in_half_range, edges, -edges])


def test_float_to_half_rounds_to_nearest_even():
    values = interesting_floats(np.random.default_rng(1))
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    assert (_testing.float_to_half(values) == expected).all()


def test_float_to_bfloat16_rounds_to_nearest_even():
    rng = np.random.default_rng(2)
    upper = rng.integers(0, 1 << 16, 100_000, dtype=np.uint32) << 16
    lower = rng.choice(np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]), upper.size)
    values = np.concatenate([(upper | lower).view(np.float32), interesting_floats(rng)])
    got = _testing.float_to_bfloat16(values)
    nan = np.isnan(values)
    assert np.isnan(_testing.bfloat16_to_float(got[nan])).all()
    value_bits = bits(values[~nan]).astype(np.uint64)
    below = value_bits >> 16
    rest = value_bits & 0xFFFF
    expected = below + ((rest > 0x8000) | ((rest == 0x8000) & (below % 2 == 1)))
    assert (got[~nan] == expected).all()
    all_bfloat16 = np.arange(1 << 16, dtype=np.uint16)
    assert (bits(_testing.bfloat16_to_float(all_bfloat16)) == all_bfloat16.astype(np.uint32) << 16).all()


def test_e8m0_is_half_the_power_of_two():
    got = _testing.e8m0_to_float_half(np.arange(256, dtype=np.uint8))
    assert_same_bits(got, np.ldexp(1.0, np.arange(256) - 128).astype(np.float32))


# ---- encoders ----


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_quantize_error_is_no_worse_than_ggml(name):
    vectors = np.load(VECTORS / f"{name}.npz")
    source = vectors["src"]
    ours = rms(_testing.dequantize(name, _testing.quantize(name, source)) - source)
    ggml = rms(vectors["q_f32"] - source)
    assert ours <= 1.02 * ggml, f"rms {ours:.4g}, ggml {ggml:.4g}"


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_16_bit_formats_equal_ggml(name):
    vectors = np.load(VECTORS / f"{name}.npz")
    assert (_testing.quantize(name, vectors["src"]) == vectors["q_raw"]).all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_quantize_awkward_blocks(name):
    n = TABLE[name]["block_size"]
    zeros = np.zeros((1, n), np.float32)
    assert (_testing.dequantize(name, _testing.quantize(name, zeros)) == 0).all()
    rng = np.random.default_rng(3)
    shapes = {
        "constant": np.full(n, 0.75),
        "negative constant": np.full(n, -0.75),
        "one outlier": np.where(np.arange(n) == 5, 100.0, 0.01),
        "all positive": rng.uniform(1, 2, n),
        "tiny": rng.normal(size=n) * 1e-3,
        "negative zero": np.full(n, -0.0),
    }
    for label, values in shapes.items():
        row = values.astype(np.float32)[None]
        error = np.abs(_testing.dequantize(name, _testing.quantize(name, row)) - row).max()
        # Three values (TQ, IQ1) and three magnitudes (IQ2) are coarse, and code books lack many patterns.
        limit = 0.65 if name.startswith(("IQ1", "IQ2", "TQ")) else 0.35
        assert error <= limit * np.abs(row).max(), f"{label}: error {error}"
    for magnitude in (3.4e38, 1e30, 1e6, 1e-6, 1e-20, 1e-45):
        row = (rng.uniform(-1, 1, n) * magnitude).astype(np.float32)[None]
        assert np.isfinite(_testing.dequantize(name, _testing.quantize(name, row))).all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantize_refuses_what_a_block_cannot_hold(name, bad):
    row = np.zeros((1, 2 * TABLE[name]["block_size"]), np.float32)
    row[0, 17] = bad
    with pytest.raises(InvalidRequestError, match="element 17"):
        _testing.quantize(name, row)


# Worst error of one element, as a share of its block's range (max - min): half a step of the coarsest grid inside the
# block, and some slack for the search, which minimises the sum of squares rather than the worst element.
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-8, 8), st.sampled_from(BLOCK_FORMATS))
def test_quantize_error_is_bounded_by_the_range(seed, log2_scale, name):
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=TABLE[name]["block_size"]) * 2.0**log2_scale).astype(np.float32)[None]
    error = np.abs(_testing.dequantize(name, _testing.quantize(name, row)) - row).max()
    spread = row.max() - row.min()
    limits = {"Q2_K": 0.25, "Q3_K": 0.2, "MXFP4": 0.2, "Q8_0": 0.004, "Q6_K": 0.03, "IQ1_S": 0.5, "IQ1_M": 0.5}
    limits |= {"IQ2_XXS": 0.35, "IQ2_XS": 0.35, "IQ2_S": 0.3, "IQ3_XXS": 0.25, "IQ3_S": 0.2, "TQ1_0": 0.5, "TQ2_0": 0.5}
    limit = limits.get(name, 0.1)
    assert error <= limit * spread
