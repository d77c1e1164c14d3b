"""Every kernel of every instruction set against the scalar ones, bit by bit; and the scalar ones against numpy.

Outputs of a product depend on one weight row and one activation row only, so the scalar result is computed once at the
largest shape and every smaller shape must be a slice of it.
"""

import functools

import gguf
import numpy as np
import pytest
from expertree._core import _testing
from hypothesis import given, settings
from hypothesis import strategies as st

# name: (elements per block, bytes per block, offsets of its float16 scales)
QUANTISED = {
    "Q4_0": (32, 18, [0]),
    "Q4_1": (32, 20, [0, 2]),
    "Q5_0": (32, 22, [0]),
    "Q5_1": (32, 24, [0, 2]),
    "Q8_0": (32, 34, [0]),
    "IQ4_NL": (32, 18, [0]),
    "MXFP4": (32, 17, []),
    "Q2_K": (256, 84, [80, 82]),
    "Q3_K": (256, 110, [108]),
    "Q4_K": (256, 144, [0, 2]),
    "Q5_K": (256, 176, [0, 2]),
    "Q6_K": (256, 210, [208]),
    "IQ4_XS": (256, 136, [0]),
    "IQ1_S": (256, 50, [0]),
    "IQ1_M": (256, 56, []),
    "IQ2_XXS": (256, 66, [0]),
    "IQ2_XS": (256, 74, [0]),
    "IQ2_S": (256, 82, [0]),
    "IQ3_XXS": (256, 98, [0]),
    "IQ3_S": (256, 110, [0]),
    "TQ1_0": (256, 54, [52]),
    "TQ2_0": (256, 66, [64]),
    "NVFP4": (64, 36, []),
}
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}

N_ROWS, N_COLUMNS = 35, 33
ROW_COUNTS = (0, 1, 3, 15, 16, 17, 35)
COLUMN_COUNTS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 33)
BLOCK_COUNTS = (1, 2, 3, 5, 17)
FLOAT_LENGTHS = (1, 15, 16, 17, 33, 576)


@pytest.fixture(params=["avx2", "avx512", "neon", "dotprod"])
def isa(request):
    if request.param not in _testing.isa_names():
        pytest.skip(f"{request.param}: this build or this CPU has no such kernels")
    return request.param


def rng_of(*key):
    return np.random.default_rng([sum(map(ord, str(part))) for part in key])


def assert_same_bits(got, want, what=""):
    """Equal bits; two NaNs are equal unless just one of them means "never written"."""
    assert got.shape == want.shape, what
    got_bits, want_bits = got.view(np.uint32), want.view(np.uint32)
    both_nan = np.isnan(got) & np.isnan(want)
    untouched = _testing.UNTOUCHED_BITS
    wrong = ((got_bits != want_bits) & ~both_nan) | ((got_bits == untouched) != (want_bits == untouched))
    if wrong.any():
        with np.errstate(all="ignore"):
            error = np.where(wrong, np.abs(got.astype(np.float64) - want.astype(np.float64)), -1.0)
        error[wrong & ~np.isfinite(error)] = np.inf
        worst = np.unravel_index(np.argmax(error), error.shape)
        raise AssertionError(
            f"{what}: {wrong.sum()} of {wrong.size} elements differ; worst at {tuple(map(int, worst))}: "
            f"got {got[worst]!r} ({got_bits[worst]:#010x}), want {want[worst]!r} ({want_bits[worst]:#010x})"
        )


def random_halves(rng, shape, low_exponent=0, high_exponent=30):
    bits = rng.integers(0, 2**16, shape, dtype=np.uint16)
    exponent = rng.integers(low_exponent, high_exponent + 1, shape, dtype=np.uint16)
    return (bits & 0x83FF) | (exponent << 10)


def put_split_halves(blocks, halves):
    """IQ1_M keeps its scale in the top nibbles of the last four words."""
    for i in range(4):
        nibble = (halves >> (4 * i) & 15).astype(np.uint8)
        at = 49 + 2 * i
        blocks[..., at] = (blocks[..., at] & 15) | nibble << 4


def put_halves(blocks, offset, halves):
    blocks[..., offset] = halves & 0xFF
    blocks[..., offset + 1] = halves >> 8


def random_weights(type_name, rows, k, seed=0, exponents=(0, 30)):
    """Random bytes in every field: uint8 [rows, row_bytes]. Scales are finite, their exponent field in `exponents`."""
    rng = rng_of("weights", type_name, rows, k, seed)
    if type_name in FLOATS:
        values = rng.standard_normal((rows, k)).astype(np.float32)
        if type_name == "F16":
            return random_halves(rng, (rows, k)).view(np.uint8)
        bits = values.view(np.uint32)
        return (bits >> 16).astype(np.uint16).view(np.uint8) if type_name == "BF16" else values.view(np.uint8)
    elements, block_bytes, scale_offsets = QUANTISED[type_name]
    blocks = rng.integers(0, 256, (rows, k // elements, block_bytes), dtype=np.uint8)
    if type_name == "MXFP4":
        blocks[..., 0] = rng.integers(max(0, 97 + exponents[0]), 97 + exponents[1] + 1, blocks.shape[:2])
    for offset in scale_offsets:
        put_halves(blocks, offset, random_halves(rng, blocks.shape[:2], *exponents))
    if type_name == "IQ1_M":
        put_split_halves(blocks, random_halves(rng, blocks.shape[:2], *exponents))
    return blocks.reshape(rows, -1)


def random_rows(n, k, seed=0):
    """Rows of different magnitude, with an outlier here and there: float32 [n, k]."""
    rng = rng_of("rows", n, k, seed)
    x = rng.standard_normal((n, k)) * 10.0 ** rng.integers(-3, 3, (n, 1))
    x[rng.random((n, k)) < 0.01] *= 30.0
    return x.astype(np.float32)


def block_of(type_name):
    return QUANTISED[type_name][0]


def activation_block_of(type_name):
    return 256 if block_of(type_name) == 256 else 32


@functools.cache
def scalar_case(type_name, k):
    w, x = random_weights(type_name, N_ROWS, k), random_rows(N_COLUMNS, k)
    return w, x, _testing.matmul("scalar", type_name, w, x)


# ---- which kernels run


def test_tables_are_distinct():
    names = _testing.isa_names()
    print("kernels that run here:", ", ".join(names), "- the engine picks", _testing.best_isa())
    assert names[0] == "scalar" and len(set(names)) == len(names)
    assert _testing.best_isa() in names
    assert _testing.best_isa() != "scalar" or names == ["scalar"]
    for name in names[1:]:
        assert _testing.shared_kernels("scalar", name) == 0, f"{name} borrows scalar kernels"
    with pytest.raises(Exception, match="mmx"):
        _testing.exp("mmx", np.zeros(1, np.float32))


# ---- products


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_matmul_shapes(isa, type_name):
    lengths = FLOAT_LENGTHS if type_name in FLOATS else [n * block_of(type_name) for n in BLOCK_COUNTS]
    for k in lengths:
        w, x, want = scalar_case(type_name, k)
        for rows in ROW_COUNTS:
            for columns in COLUMN_COUNTS:
                got = _testing.matmul(isa, type_name, w[:rows], x[:columns])
                assert_same_bits(got, want[:columns, :rows], f"{isa} {type_name} k {k}")


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_matmul_misaligned(isa, type_name):
    k = 33 if type_name in FLOATS else 3 * block_of(type_name)
    w, x, want = scalar_case(type_name, k)
    for misalign in range(65):
        got = _testing.matmul(isa, type_name, w[:17], x[:3], misalign=misalign)
        assert_same_bits(got, want[:3, :17], f"{isa} {type_name} misaligned by {misalign}")


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_matmul_row_ranges(isa, type_name):
    k = 17 if type_name in FLOATS else 2 * block_of(type_name)
    w, x, want = scalar_case(type_name, k)
    for begin, end in ((0, 35), (0, 1), (1, 2), (5, 17), (16, 17), (3, 3), (1, 34), (34, 35), (18, 34)):
        for columns in (1, 9):
            got = _testing.matmul(isa, type_name, w, x[:columns], row_begin=begin, row_end=end)
            assert_same_bits(got[:, begin:end], want[:columns, begin:end])
            outside = np.delete(got, np.s_[begin:end], axis=1).view(np.uint32)
            assert (outside == _testing.UNTOUCHED_BITS).all(), f"{isa} {type_name} wrote outside [{begin}, {end})"


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_matmul_gathers(isa, type_name):
    k = 33 if type_name in FLOATS else 2 * block_of(type_name)
    w, x, want = scalar_case(type_name, k)
    rng = rng_of("gathers", type_name)
    for columns in (1, 2, 5, 8, 13, 40):
        x_rows = rng.integers(0, N_COLUMNS, columns, dtype=np.int32)
        y_rows = rng.permutation(columns + 3)[:columns].astype(np.int32)
        expected = np.full((y_rows.max() + 1, N_ROWS), np.nan, np.float32)
        expected.view(np.uint32)[:] = _testing.UNTOUCHED_BITS
        expected[y_rows] = want[x_rows]
        got = _testing.matmul(isa, type_name, w, x, x_rows=x_rows, y_rows=y_rows)
        assert_same_bits(got, expected, f"{isa} {type_name} x_rows and y_rows")
        assert_same_bits(_testing.matmul(isa, type_name, w, x, x_rows=x_rows), want[x_rows])


def extreme_rows(k):
    """Full-scale activations of every sign pattern, and the values where rounding and scaling go wrong."""
    rows = [np.full(k, 127.0), np.full(k, -127.0)]
    rows += [127.0 * (-1.0) ** (np.arange(k) // run) for run in (1, 2, 16)]
    rows += [np.zeros(k), -np.zeros(k), np.full(k, 1e-40), np.full(k, 3.5e-37), np.full(k, 4e-37), np.full(k, 3.4e38)]
    for special in (np.inf, -np.inf, np.nan):
        row = np.ones(k)
        row[-1] = special
        rows.append(row)
    return np.array(rows).astype(np.float32)


@pytest.mark.parametrize("type_name", QUANTISED)
def test_matmul_extremes(isa, type_name):
    elements, block_bytes, scale_offsets = QUANTISED[type_name]
    k = 3 * elements
    fills = (0x00, 0xFF, 0x80, 0x7F, 0xF0, 0x0F, 0x3F, 0x88)
    w = np.repeat(np.array(fills, np.uint8), 3 * block_bytes).reshape(len(fills), 3, block_bytes).copy()
    for offset in scale_offsets:
        put_halves(w, offset, np.full(w.shape[:2], 0x3C00, np.uint16))
    if type_name == "MXFP4":
        w[..., 0] = 128
    if type_name == "IQ1_M":
        put_split_halves(w, np.full(w.shape[:2], 0x3C00, np.uint16))
    w = w.reshape(len(fills), -1)
    x = extreme_rows(k)
    assert_same_bits(_testing.matmul(isa, type_name, w, x), _testing.matmul("scalar", type_name, w, x), type_name)


@pytest.mark.parametrize("type_name", QUANTISED)
def test_matmul_hostile_scales(isa, type_name):
    """Infinite, NaN, zero and subnormal scales, against activations that may be zero, infinite or NaN themselves."""
    elements, _, scale_offsets = QUANTISED[type_name]
    rng = rng_of("hostile", type_name)
    w = random_weights(type_name, 64, 5 * elements).reshape(64, 5, -1)
    specials = np.array([0x7C00, 0xFC00, 0x7E01, 0xFC01, 0, 0x8000, 1, 0x83FF, 0x7BFF, 0x3C00], np.uint16)
    for offset in scale_offsets:
        halves = specials[rng.integers(0, len(specials), w.shape[:2])]
        ordinary = rng.random(w.shape[:2]) < 0.6
        put_halves(w, offset, np.where(ordinary, np.uint16(0x3C00), halves))
    if type_name == "MXFP4":
        w[..., 0] = np.array([0, 1, 2, 127, 254, 255], np.uint8)[rng.integers(0, 6, w.shape[:2])]
    if type_name == "IQ1_M":
        put_split_halves(w, specials[rng.integers(0, len(specials), w.shape[:2])])
    if type_name == "NVFP4":
        w[..., :4] = np.array([0, 1, 7, 8, 0x7E, 0x7F, 0x80, 0xFF], np.uint8)[rng.integers(0, 8, (*w.shape[:2], 4))]
    w = w.reshape(64, -1)
    x = np.concatenate([extreme_rows(5 * elements), random_rows(4, 5 * elements)])
    assert_same_bits(_testing.matmul(isa, type_name, w, x), _testing.matmul("scalar", type_name, w, x), type_name)


@pytest.mark.parametrize("type_name", FLOATS)
def test_matmul_float_specials(isa, type_name):
    """Any bit pattern as a weight: subnormals, infinities, quiet and signalling NaN."""
    rng = rng_of("specials", type_name)
    w = rng.integers(0, 256, (200, 5 * FLOATS[type_name]), dtype=np.uint8)
    rows = [[1, -1, 1e-38, 0, 2], [1e-40, 3, -0.0, 1e30, 1], [np.inf, 1, 1, 1, 1], [1, np.nan, 0, 0, 0]]
    x = np.array(rows, np.float32)
    assert_same_bits(_testing.matmul(isa, type_name, w, x), _testing.matmul("scalar", type_name, w, x), type_name)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    type_name=st.sampled_from([*QUANTISED, *FLOATS]),
    blocks=st.integers(1, 20),
    rows=st.integers(1, 50),
    columns=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_matmul_any_shape(type_name, blocks, rows, columns, seed):
    k = blocks * (7 if type_name in FLOATS else block_of(type_name))
    w, x = random_weights(type_name, rows, k, seed), random_rows(columns, k, seed)
    want = _testing.matmul("scalar", type_name, w, x)
    for name in _testing.isa_names()[1:]:
        assert_same_bits(_testing.matmul(name, type_name, w, x), want, f"{name} {type_name}")


@pytest.mark.parametrize("type_name", QUANTISED)
def test_matmul_long_rows(isa, type_name):
    """Rows that streams read in several passes, the last one short: of 64 or 128 blocks of 32, of 8 or 16 of 256."""
    for blocks in (64, 65, 131) if block_of(type_name) == 32 else (33,):
        w, x = random_weights(type_name, 17, blocks * block_of(type_name)), random_rows(5, blocks * block_of(type_name))
        want = _testing.matmul("scalar", type_name, w, x)
        for columns in range(1, 6):
            got = _testing.matmul(isa, type_name, w, x[:columns])
            assert_same_bits(got, want[:columns], f"{isa} {type_name}, {blocks} blocks, {columns} columns")


def test_matmul_more_columns_than_a_strip(isa):
    for type_name in ("Q4_1", "Q4_K", "Q6_K", "IQ2_S", "IQ3_XXS", "TQ2_0", "NVFP4", "F16"):
        w, x = random_weights(type_name, 17, 512), random_rows(300, 512)
        assert_same_bits(_testing.matmul(isa, type_name, w, x), _testing.matmul("scalar", type_name, w, x), type_name)


# ---- quantisation of activations


@pytest.mark.parametrize("block", [32, 256])
def test_quantize_rows(isa, block):
    x = np.concatenate([random_rows(40, 3 * block), extreme_rows(3 * block)])
    ties = (np.arange(3 * block) % 255 - 127) / 2.0  # with 127 among them: id = 1, and halves round to even
    ties[::32] = 127.0
    tiny = np.full(3 * block, 2.0**-126, np.float64)
    x = np.concatenate([x, ties[None], -ties[None], tiny[None]]).astype(np.float32)
    results = zip(_testing.quantize_rows(isa, block, x), _testing.quantize_rows("scalar", block, x), strict=True)
    for got, want in results:
        if got.dtype == np.float32:
            assert_same_bits(got, want, f"{isa} d")
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("block", [32, 256])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), exponent=st.integers(1, 254), spread=st.integers(0, 40))
def test_quantize_any_exponent(block, seed, exponent, spread):
    rng = np.random.default_rng(seed)
    exponents = np.clip(exponent - rng.integers(0, spread + 1, (4, block)), 0, 254).astype(np.uint32)
    x = (rng.integers(0, 2**32, (4, block), dtype=np.uint32) & 0x807FFFFF | exponents << 23).view(np.float32)
    want = _testing.quantize_rows("scalar", block, x)
    for name in _testing.isa_names()[1:]:
        got = _testing.quantize_rows(name, block, x)
        np.testing.assert_array_equal(got[0], want[0])
        assert_same_bits(got[1], want[1], f"{name} d")
        np.testing.assert_array_equal(got[2], want[2])


# ---- element by element


ELEMENT_COUNTS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 576, 1000)


def special_floats():
    return np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0,
         88.0, 88.72284, 88.73, 89.5, -87.0, -87.33654, -87.3366, -88.5, -103.9, -104.1, 100.0, -99.9, -101.0],
        np.float32,
    )  # fmt: skip


@functools.cache
def scalar_function(function):
    """Any bit pattern, and enough usual arguments (4 million) that a rounding in a high coefficient shows."""
    rng = rng_of(function)
    any_bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    low, high = (-90.0, 90.0) if function == "exp" else (0.5, 2.0)
    usual = rng.uniform(low, high, 4_000_000).astype(np.float32)
    x = np.concatenate([special_floats(), any_bits, usual])
    return x, getattr(_testing, function)("scalar", x)


@pytest.mark.parametrize("function", ["exp", "log"])
def test_exp_log(isa, function):
    run = getattr(_testing, function)
    x, want = scalar_function(function)
    assert_same_bits(run(isa, x), want, function)
    for n in ELEMENT_COUNTS:
        assert_same_bits(run(isa, x[:n]), want[:n], f"{function} n {n}")


@pytest.mark.parametrize("unit", ["silu_mul", "gelu_mul", "swiglu_oai", "relu_mul"])
def test_gated_units(isa, unit):
    for n in ELEMENT_COUNTS:
        gate, up = random_rows(2, n)
        gate[: len(special_floats())] = special_floats()[:n]
        up[::-1][: len(special_floats())] = special_floats()[:n]
        want = _testing.gated_unit("scalar", unit, gate, up)
        for in_place in ("", "gate", "up"):
            assert_same_bits(_testing.gated_unit(isa, unit, gate, up, in_place), want, f"{unit} n {n} {in_place!r}")
    gate = np.linspace(-120, 120, 100_001, dtype=np.float32)
    assert_same_bits(_testing.gated_unit(isa, unit, gate, gate), _testing.gated_unit("scalar", unit, gate, gate), unit)


def test_axpy(isa):
    for n in ELEMENT_COUNTS:
        x, acc = random_rows(2, n)
        for scale in (0.3, -0.0, 1e-40, np.inf):
            want = _testing.axpy("scalar", scale, x, acc)
            assert_same_bits(_testing.axpy(isa, scale, x, acc), want, f"axpy n {n}")


def test_rms_norm(isa):
    for n in ELEMENT_COUNTS:
        for scale in (1.0, 0.0, 1e-30, 1e25):
            x, w = random_rows(2, n)
            x = x * np.float32(scale)
            for weight in (w, None):
                want = _testing.rms_norm("scalar", x, weight, 1e-6)
                for in_place in (False, True):
                    got = _testing.rms_norm(isa, x, weight, 1e-6, in_place)
                    assert_same_bits(got, want, f"rms_norm n {n} scale {scale}")


@pytest.mark.parametrize("n", [33, 576])
def test_rms_norm_rounds_its_sum_alike(isa, n):
    """Many rows without outliers, whose last bits depend on each rounding of the sum of squares."""
    x = rng_of("norm sums", n).standard_normal((200, n)).astype(np.float32)
    want, got = (np.array([_testing.rms_norm(name, row, None, 1e-6) for row in x]) for name in ("scalar", isa))
    assert_same_bits(got, want, f"rms_norm n {n}")
    # It can tell: squares rounded by themselves, then added, change about one row in 20.
    lanes = np.zeros((200, 16), np.float32)
    for begin in range(0, n, 16):
        part = x[:, begin : begin + 16]
        lanes[:, : part.shape[1]] += part * part
    while lanes.shape[1] > 1:
        lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
    other = x * (np.float32(1) / np.sqrt(lanes / np.float32(n) + np.float32(1e-6)))
    assert (other.view(np.uint32) != want.view(np.uint32)).any(1).sum() > 4


def test_softmax(isa):
    for n in ELEMENT_COUNTS:
        x = random_rows(1, n)[0] * np.float32(10)
        cases = [x, -np.abs(x), np.zeros(n, np.float32), np.full(n, -np.inf, np.float32)]
        for special in (np.inf, -np.inf, np.nan):
            row = x.copy()
            row[n // 2] = special
            cases.append(row)
        for case in cases:
            want = _testing.softmax("scalar", case)
            for in_place in (False, True):
                assert_same_bits(_testing.softmax(isa, case, in_place), want, f"softmax n {n}")


# ---- attention


def attention_case(heads, dim_k, dim_v, positions, seed=0):
    rng = rng_of("attention", heads, dim_k, dim_v, positions, seed)
    q, k, v = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((heads, dim_k), (positions, dim_k), (positions, dim_v))
    )
    return q * np.float32(3.0), k, v


def attend_in_order(name, q, k, v, scale=0.25, **options):
    return _testing.attend(name, q, k, v, len(k), np.zeros(0, np.int32), scale, **options)


@pytest.mark.parametrize("dim", [1, 8, 24, 40, 64, 80, 96, 128, 256])
def test_attend(isa, dim):
    for positions in (1, 31, 32, 33, 65, 200):
        q, k, v = attention_case(8, dim, dim, positions)
        want = attend_in_order("scalar", q, k, v)
        for heads in (1, 2, 3, 4, 5, 6, 7, 8):
            got = attend_in_order(isa, q[:heads], k, v)
            assert_same_bits(got, want[:heads], f"attend dim {dim}, {positions} positions, {heads} heads")


def test_attend_different_value_size(isa):
    for dim_k, dim_v in ((192, 128), (24, 72), (17, 33), (576, 512), (3, 300)):
        q, k, v = attention_case(5, dim_k, dim_v, 70)
        assert_same_bits(attend_in_order(isa, q, k, v), attend_in_order("scalar", q, k, v), f"{dim_k} {dim_v}")


def test_attend_tails(isa):
    """The same positions in scattered cells give the same bits, wherever the prefix ends."""
    rng = rng_of("tails")
    for positions in (1, 33, 65, 100):
        q, k, v = attention_case(3, 40, 40, positions)
        want = attend_in_order("scalar", q, k, v)
        for n_prefix in {0, positions // 3, min(32, positions), positions - 1}:
            n_cells = positions + 20
            cells = n_prefix + rng.permutation(n_cells - n_prefix)[: positions - n_prefix].astype(np.int32)
            k_cells, v_cells = (np.full((n_cells, 40), np.nan, np.float32) for _ in range(2))
            k_cells[:n_prefix], v_cells[:n_prefix] = k[:n_prefix], v[:n_prefix]
            k_cells[cells], v_cells[cells] = k[n_prefix:], v[n_prefix:]
            for name in ("scalar", isa):
                got = _testing.attend(name, q, k_cells, v_cells, n_prefix, cells, 0.25)
                assert_same_bits(got, want, f"{name} {positions} positions, prefix {n_prefix}")


@pytest.mark.parametrize("heads", [1, 3, 8, 9])
def test_attend_rows_together(isa, heads):
    """Rows of different lengths in one call: each as if it were alone."""
    rng = rng_of("rows", heads)
    lengths = np.array([1, 40, 32, 33, 100, 99, 64, 65, 2, 31, 97], np.int32)
    q = rng.standard_normal((len(lengths), heads, 40)).astype(np.float32)
    _, k, v = attention_case(heads, 40, 24, 100)
    for n in (1, 2, 8, 9, 11):
        for first in (np.zeros(n, np.int32), np.maximum(lengths[:n] - 37, 0)):
            got = _testing.attend_rows(isa, q[:n], k, v, lengths[:n], first, 0.25).reshape(n, heads, 24)
            for r in range(n):
                seen = slice(first[r], lengths[r])
                want = attend_in_order("scalar", q[r], k[seen], v[seen])
                assert_same_bits(got[r], want, f"row {r} of {n}, {heads} heads, from {first[r]}")


def test_attend_window_sinks_and_soft_cap(isa):
    for positions, first in ((1, 0), (40, 7), (100, 33), (100, 99), (65, 64)):
        q, k, v = attention_case(7, 24, 40, positions)
        sinks = np.linspace(-30, 30, 7, dtype=np.float32)
        for options in ({"first": first}, {"sinks": sinks}, {"softcap": 3.0}, {"softcap": 30.0, "sinks": sinks}):
            for heads in (1, 2, 4, 7):
                cut = {key: value[:heads] if key == "sinks" else value for key, value in options.items()}
                want = attend_in_order("scalar", q[:heads], k, v, **cut)
                assert_same_bits(attend_in_order(isa, q[:heads], k, v, **cut), want, f"{positions} {cut}")
        # A window is the same as a shorter past, and across a tail.
        want = attend_in_order("scalar", q, k[first:], v[first:])
        cells = np.arange(positions // 2, positions, dtype=np.int32)
        assert_same_bits(_testing.attend(isa, q, k, v, positions // 2, cells, 0.25, first), want, "window and tail")


def test_attend_extremes(isa):
    """Scores that rise, fall, tie, overflow, and values that are not finite."""
    q, k, v = attention_case(4, 16, 40, 100)
    cases = [((q * np.float32(s)).clip(-3e38, 3e38), k, v) for s in (0.0, 1e-30, 50.0, 1e20, 1e37)]
    ramp = np.sort(k, axis=0)
    cases += [(np.abs(q), ramp, v), (np.abs(q), ramp[::-1].copy(), v)]
    for special in (np.inf, -np.inf, np.nan):
        for position in (0, 40, 99):
            k_special, v_special = k.copy(), v.copy()
            k_special[position, 3] = special
            v_special[position, 5] = special
            cases += [(q, k_special, v), (q, k, v_special)]
    for case in cases:
        assert_same_bits(attend_in_order(isa, *case), attend_in_order("scalar", *case), "attend")


# ---- the scalar kernels against numpy in double precision


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_scalar_matmul_means_matmul(type_name):
    k = 576 if type_name in FLOATS else 3 * block_of(type_name)
    w, x = random_weights(type_name, 9, k, exponents=(8, 18)), random_rows(5, k)
    w_values = gguf.quants.dequantize(w, gguf.GGMLQuantizationType[type_name]).astype(np.float64)
    bound = np.abs(x).astype(np.float64) @ np.abs(w_values).T * 1e-5
    reference = _testing.matmul("scalar", type_name, w, x, reference=True)
    assert (np.abs(reference - x.astype(np.float64) @ w_values.T) <= bound).all()
    got = _testing.matmul("scalar", type_name, w, x)
    if type_name in FLOATS:
        assert_same_bits(got, reference, type_name)
        return
    # Exactly what the int8 activations say, but for float rounding; and near the float product, to half a step each.
    block = activation_block_of(type_name)
    q, d, _ = _testing.quantize_rows("scalar", block, x)
    steps = np.repeat(d, block, axis=1).astype(np.float64)
    # A minimum is subtracted from a product: the rounding is relative to both.
    terms = np.abs(q * steps) @ np.abs(w_values).T
    assert (np.abs(got - (q * steps) @ w_values.T) <= terms * 1e-4).all()
    assert (np.abs(got - x.astype(np.float64) @ w_values.T) <= (0.5 * steps) @ np.abs(w_values).T + terms * 1e-4).all()


@pytest.mark.parametrize("block", [32, 256])
def test_scalar_quantize_means_rounding(block):
    x = random_rows(20, 4 * block)
    q, d, sums16 = _testing.quantize_rows("scalar", block, x)
    assert np.abs(q.astype(int)).max() == 127
    assert (np.abs(x - q * np.repeat(d, block, axis=1)) <= 0.5001 * np.repeat(d, block, axis=1)).all()
    np.testing.assert_array_equal(sums16, q.reshape(20, -1, 16).sum(axis=2, dtype=np.int16))
    rows = extreme_rows(block)
    q, d, sums16 = _testing.quantize_rows("scalar", block, rows)
    assert np.isnan(d[-3:]).all() and not q[-3:].any() and not sums16[-3:].any()
    assert not d[5:9].any() and not q[5:9].any()  # zeros, and values too small to scale
    assert d[9] > 0 and np.abs(q[9].astype(int)).min() == 127


def test_scalar_elementwise_means_math():
    x = np.linspace(-80, 80, 10_001, dtype=np.float32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(_testing.exp("scalar", x), np.exp(wide), rtol=2e-7)
    positive = np.exp(wide).astype(np.float32)
    logs = np.log(positive.astype(np.float64))
    np.testing.assert_allclose(_testing.log("scalar", positive), logs, rtol=2e-7, atol=1e-9)
    units = {
        "silu_mul": wide / (1 + np.exp(-wide)),
        "gelu_mul": wide * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))),
        "relu_mul": np.maximum(wide, 0),
    }
    for unit, gated in units.items():
        atol = 1e-6 if unit == "gelu_mul" else 0  # numpy's 1 + tanh cancels
        np.testing.assert_allclose(_testing.gated_unit("scalar", unit, x, x), gated * wide, rtol=3e-6, atol=atol)
    gate = np.minimum(wide, 7)
    clamped = gate / (1 + np.exp(-1.702 * gate)) * (np.clip(-wide, -7, 7) + 1)
    np.testing.assert_allclose(_testing.gated_unit("scalar", "swiglu_oai", x, -x), clamped, rtol=1e-5, atol=1e-6)
    a, b = random_rows(2, 1000)
    np.testing.assert_allclose(_testing.axpy("scalar", 0.5, a, b), 0.5 * a + b, rtol=1e-6, atol=1e-3)
    norm = a / np.sqrt((a.astype(np.float64) ** 2).mean() + 1e-6)
    np.testing.assert_allclose(_testing.rms_norm("scalar", a, b, 1e-6), norm * b, rtol=1e-5)
    np.testing.assert_allclose(_testing.rms_norm("scalar", a, None, 1e-6), norm, rtol=1e-5)
    e = np.exp(b.astype(np.float64) - b.max())
    np.testing.assert_allclose(_testing.softmax("scalar", b), e / e.sum(), rtol=1e-5, atol=1e-30)


def test_scalar_attend_means_attention():
    for dim_k, dim_v, positions in ((64, 64, 200), (24, 40, 33), (1, 1, 1)):
        q, k, v = attention_case(4, dim_k, dim_v, positions)
        scores = q.astype(np.float64) @ k.T * 0.25
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        want = p / p.sum(axis=1, keepdims=True) @ v
        np.testing.assert_allclose(attend_in_order("scalar", q, k, v), want, rtol=1e-4, atol=1e-5)
        sinks = np.array([-2, 0, 2, 20], np.float32)
        capped = 4 * np.tanh(scores / 4)
        e = np.exp(capped)
        want = e / (e.sum(axis=1, keepdims=True) + np.exp(sinks.astype(np.float64))[:, None]) @ v
        got = attend_in_order("scalar", q, k, v, softcap=4.0, sinks=sinks)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
