"""Norms, rotary embedding, cells, router and element-wise kernels against the scalar ones."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64

import numpy as np
import pytest
from expertree._core import _testing
from kernels import GATINGS, CacheCells, CudaError, Device, ResidualNorm, Rope, Router, call, device, put_cells
from weights import assert_same_bits, random_rows

EPS = 1e-5
LENGTHS = (1, 15, 16, 17, 100, 576, 2048)


def rms_norm(x: np.ndarray, w: np.ndarray | None) -> np.ndarray:
    return np.array([_testing.rms_norm("scalar", row, w, EPS) for row in x])


def centred(x: np.ndarray) -> np.ndarray:
    """Rows less their mean, summed as canonical.h, C1 has it."""
    n = x.shape[1]
    lanes = np.zeros((16, len(x)), np.float32)
    for i in range(n):
        lanes[i % 16] += x[:, i]
    for half in (8, 4, 2, 1):
        lanes[:half] += lanes[half : 2 * half]
    return x - (lanes[0] / np.float32(n))[:, None]


@pytest.mark.parametrize("n", [*LENGTHS, 13000])  # the last is longer than what is staged
def test_rms_norm(n: int, order: str) -> None:
    rng = np.random.default_rng(n)
    x, (w, bias) = random_rows(rng, 3, n), random_rows(rng, 2, n)
    for weight, added, in_place, is_layer_norm in (
        (w, None, False, False), (None, None, True, False), (w, bias, True, False), (w, bias, False, True),
    ):  # fmt: skip
        with device() as on:
            source = on.put(np.pad(x, ((0, 0), (0, 5))))
            y = source if in_place else on.alloc(3 * (n + 5) * 4)
            on.run(
                "rms_norm", source, c_int64(n + 5), on.put(weight), on.put(added), c_float(EPS), c_int64(3), c_int64(n),
                y, c_int64(n + 5), is_layer_norm,
            )  # fmt: skip
            got = on.get(y, (3, n + 5))[:, :n].copy()
        want = rms_norm(centred(x) if is_layer_norm else x, weight)
        assert_same_bits(got, want if added is None else want + added, f"n {n}")


@pytest.mark.parametrize("n", [*LENGTHS, 13000])
def test_residual_norm(n: int, order: str) -> None:
    rng = np.random.default_rng(n)
    residual, add = random_rows(rng, 4, n), random_rows(rng, 4, n)
    post, w, bias = random_rows(rng, 3, n)
    for post_norm, scale, weight, added, normed, is_layer_norm in (
        (None, 1.0, w, None, True, False),
        (post, 0.22, w, None, True, False),
        (post, 1.0, w, bias, True, False),
        (None, 0.5, None, None, False, False),
        (None, 1.0, None, None, True, False),
        (post, 1.0, w, bias, True, True),
    ):
        part = add if post_norm is None else rms_norm(add, post_norm)
        want = residual + part * np.float32(scale)
        with device() as on:
            p = on.put(residual)
            out = on.alloc(4 * n * 4) if normed else None
            args = ResidualNorm(
                p, on.put(add), on.put(post_norm), scale, on.put(weight), on.put(added), EPS, out, is_layer_norm
            )
            on.run("residual_norm", ctypes.byref(args), c_int64(4), c_int64(n), None)
            assert_same_bits(on.get(p, (4, n)), want, f"residual n {n}")
            if out is not None:
                want = rms_norm(centred(want) if is_layer_norm else want, weight)
                assert_same_bits(on.get(out, (4, n)), want if added is None else want + added, f"normed n {n}")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.finfo(np.float32).max])
def test_a_residual_stream_that_is_not_finite_is_told(value: float, order: str) -> None:
    for row, at in ((0, 0), (3, 299)):
        residual, add = np.zeros((4, 300), np.float32), np.zeros((4, 300), np.float32)
        add[row, at] = value
        for normed in (True, False):
            with device() as on:
                flag, out = on.put(np.zeros(1, np.int32)), on.alloc(4 * 300 * 4) if normed else None
                args = ResidualNorm(on.put(residual), on.put(add), None, 1.0, None, None, EPS, out, False, flag)
                on.run("residual_norm", ctypes.byref(args), c_int64(4), c_int64(300), None)
                assert bool(on.get(flag, (1,), np.int32)[0]) != bool(np.isfinite(value))


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, consecutive: bool) -> np.ndarray:
    """x [rows, heads, head_dim]; model/rope.cpp in numpy."""
    n = cos.shape[1]
    y = x.copy()
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if consecutive else (slice(0, n), slice(n, 2 * n))
    c, s = cos[:, None], sin[:, None]
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
    return y


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize(("head_dim", "n_pairs"), [(2, 1), (128, 64), (80, 16), (256, 100), (64, 0)])
def test_rope(head_dim: int, n_pairs: int, consecutive: bool, order: str) -> None:
    rng = np.random.default_rng(head_dim)
    x = random_rows(rng, 15, head_dim + 4).reshape(5, 3, head_dim + 4)  # heads further apart than they are long
    angles = rng.uniform(0, 6, (5, n_pairs))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    scale = rng.uniform(0.5, 2, 5).astype(np.float32)
    for factor in (None, scale):
        with device() as on:
            p = on.put(x)
            args = Rope(
                p, 3 * (head_dim + 4), head_dim + 4, 3, head_dim, on.put(cos), on.put(sin), n_pairs, consecutive,
                on.put(factor),
            )  # fmt: skip
            on.run("rope", ctypes.byref(args), c_int64(5))
            got = on.get(p, x.shape)
        want = turned(x, cos, sin, consecutive)
        if factor is not None:
            want[..., :head_dim] *= factor[:, None, None]
        assert_same_bits(got, want)


def contents(on: Device, cells: CacheCells, head_dim: int) -> list[np.ndarray]:
    """Elements and scales of 9 cells of 3 heads; bits."""
    stride = cells.cell_stride
    types = {0: np.uint32, 1: np.uint16, 8: np.int8}
    elements = on.get(cells.elements, (3, 10, stride), types[cells.dtype])
    if not cells.scales:
        return [elements[:, :9, :head_dim]]
    return [elements[:, :9], on.get(cells.scales, (3, 10, stride // 32), np.uint16)[:, :9]]


@pytest.mark.parametrize("type_name", ["F32", "F16", "Q8_0"])
def test_cells(type_name: str, order: str) -> None:
    """What rounds rows on the device and what copies rows that the CPU has rounded leave the same cells."""
    rng = np.random.default_rng(0)
    n_heads, head_dim, n_cells = 3, 100, 9
    x = random_rows(rng, 4, 320)
    x[0, :32] = 0.0
    x[1, :32] *= np.float32(1e-38)  # too small for a scale
    x[2, 32:64] = np.float32(2**-14) * rng.integers(-8, 9, 32).astype(np.float32)  # ties of int8, small halves
    numbers = np.array([7, 0, 3, 8], np.int32)
    heads = x[:, :300].reshape(4, n_heads, head_dim)
    with device() as on:
        stored, copied = (put_cells(on, type_name, np.zeros((n_heads, n_cells, head_dim), np.float32)) for _ in "ab")
        on.run(
            "store_cells", on.put(x), c_int64(320), n_heads, head_dim, on.put(numbers), c_int64(4),
            ctypes.byref(stored), None,
        )  # fmt: skip
        for row, cell in enumerate(numbers):
            encoded = _testing.write_cache_rows("scalar", type_name.lower(), heads[row].copy())
            on.run(
                "copy_cells", on.put(encoded), c_int64(encoded.shape[1]), n_heads, c_int64(int(cell)), c_int64(1),
                ctypes.byref(copied),
            )  # fmt: skip
        for one, other in zip(contents(on, stored, head_dim), contents(on, copied, head_dim), strict=True):
            assert np.array_equal(one, other)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.float32(1) / (np.float32(1) + _testing.exp("scalar", -x))


def route(scores: np.ndarray, router: dict[str, object], bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """One row as cpp/model/router.cpp has it."""
    gating, n_used = router["gating"], int(str(router["n_used"]))
    n_groups, n_groups_used = int(str(router["n_groups"])), int(str(router["n_groups_used"]))
    gated = scores
    if gating == "softmax":
        gated = _testing.softmax("scalar", scores)
    elif gating == "sigmoid":
        gated = sigmoid(scores)
    selection = gated.copy() if bias is None else gated + bias
    if n_groups > 1:
        groups = selection.reshape(n_groups, -1)
        best = np.sort(groups, axis=1)[:, ::-1][:, :2]
        ranks = np.argsort(-(best[:, 0] + best[:, 1]), kind="stable")
        groups[ranks[n_groups_used:]] = -np.inf
    ids = np.argsort(-selection, kind="stable")[:n_used]
    weights = gated[ids]
    if gating == "softmax_of_chosen":
        weights = _testing.softmax("scalar", weights)
    elif gating == "sigmoid_of_chosen":
        weights = sigmoid(weights)
    if router["renormalize"]:
        total = np.float32(0)
        for w in weights:
            total = total + w
        weights = weights / max(total, np.float32(2.0**-14))
    return ids.astype(np.int32), weights * np.float32(router["weights_scale"])  # type: ignore[arg-type]


ROUTERS = [
    {"gating": "softmax", "n_experts": 128, "n_used": 8, "renormalize": True},
    {"gating": "softmax", "n_experts": 60, "n_used": 4},
    {"gating": "softmax_of_chosen", "n_experts": 32, "n_used": 4},
    {"gating": "softmax_of_chosen", "n_experts": 64, "n_used": 6, "renormalize": True},
    {"gating": "sigmoid_of_chosen", "n_experts": 16, "n_used": 1},
    {"gating": "sigmoid_of_chosen", "n_experts": 40, "n_used": 6, "renormalize": True},
    {"gating": "softmax", "n_experts": 8, "n_used": 8, "renormalize": True},
    {"gating": "sigmoid", "n_experts": 256, "n_used": 8, "n_groups": 8, "n_groups_used": 4, "renormalize": True,
     "weights_scale": 2.5},
    {"gating": "softmax", "n_experts": 160, "n_used": 6, "n_groups": 8, "n_groups_used": 3, "weights_scale": 16.0},
    {"gating": "sigmoid", "n_experts": 1024, "n_used": 64, "n_groups": 64, "n_groups_used": 40},
    {"gating": "softmax", "n_experts": 1, "n_used": 1, "renormalize": True},
    {"gating": "sigmoid", "n_experts": 300, "n_used": 10, "renormalize": True},
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(ROUTERS)))
def test_router(case: int, order: str) -> None:
    router = {"n_groups": 1, "n_groups_used": 1, "renormalize": False, "weights_scale": 1.0, **ROUTERS[case]}
    rng = np.random.default_rng(case)
    n, n_used = int(str(router["n_experts"])), int(str(router["n_used"]))
    scores = rng.standard_normal((6, n)).astype(np.float32) * 3
    scores[1] = np.float32(0.5)  # ties everywhere
    scores[2] = np.where(rng.random(n) < 0.5, np.float32(0), np.float32(-0.0))
    scores[3] = np.round(scores[3])
    scores[4] -= 200  # sigmoids that vanish
    for bias in (None, (rng.standard_normal(n) * 0.1).astype(np.float32)):
        with device() as on:
            p, flag = on.put(scores), on.put(np.zeros(1, np.int32))
            ids, weights = on.alloc(6 * n_used * 4), on.alloc(6 * n_used * 4)
            args = Router(
                on.put(bias), n, n_used, GATINGS[str(router["gating"])], router["n_groups"], router["n_groups_used"],
                router["renormalize"], router["weights_scale"],
            )  # fmt: skip
            on.run("router", ctypes.byref(args), p, c_int64(6), ids, weights, flag, None)
            got_ids, got_weights = on.get(ids, (6, n_used), np.int32), on.get(weights, (6, n_used))
            assert on.get(flag, (1,), np.int32)[0] == 0
        for row in range(6):
            want_ids, want_weights = route(scores[row], router, bias)
            np.testing.assert_array_equal(got_ids[row], want_ids, err_msg=f"row {row}")
            assert_same_bits(got_weights[row], want_weights, f"row {row}")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_router_sees_damaged_scores(wrong: float, order: str) -> None:
    scores = np.zeros((3, 40), np.float32)
    scores[1, 39] = wrong
    with device() as on:
        flag, ids, weights = on.put(np.zeros(1, np.int32)), on.alloc(24), on.alloc(24)
        args = Router(None, 40, 2, 0, 1, 1, False, 1.0)
        on.run("router", ctypes.byref(args), on.put(scores), c_int64(3), ids, weights, flag, None)
        assert on.get(flag, (1,), np.int32)[0] == 1


def test_what_a_router_cannot_be() -> None:
    for n, n_used, groups in ((2000, 1, 1), (8, 9, 1), (100, 65, 1), (10, 2, 3), (10, 2, 0)):
        args = Router(None, n, n_used, 0, groups, 1, False, 1.0)
        with device() as on, pytest.raises(CudaError):
            call("router", ctypes.byref(args), None, c_int64(1), None, None, None, None, on.stream)


def test_a_grid_for_more_rows_than_there_are(order: str) -> None:
    """What is not a number in rows that are not there is not told, and no cell is written for them."""
    rows = np.ones((5, 64), np.float32)
    rows[2:] = np.nan
    with device() as on:
        two, flags = on.put(np.array([2], np.int32)), [on.put(np.zeros(1, np.int32)) for _ in "ab"]
        p = on.put(rows)
        norm = ResidualNorm(p, on.put(rows), None, 1.0, None, None, EPS, on.alloc(5 * 64 * 4), False, flags[0])
        on.run("residual_norm", ctypes.byref(norm), c_int64(5), c_int64(64), two)
        assert (on.get(p, (5, 64))[:2] == 2.0).all()
        ids, weights = on.put(np.full((5, 2), -1, np.int32)), on.alloc(40)
        router = Router(None, 64, 2, 0, 1, 1, False, 1.0)
        on.run("router", ctypes.byref(router), on.put(rows), c_int64(5), ids, weights, flags[1], two)
        assert on.get(ids, (5, 2), np.int32).tolist() == [[0, 1]] * 2 + [[-1, -1]] * 3
        assert [int(on.get(flag, (1,), np.int32)[0]) for flag in flags] == [0, 0]
        for type_name in ("F32", "F16", "Q8_0"):
            cells = put_cells(on, type_name, np.zeros((1, 9, 64), np.float32))
            numbers = on.put(np.array([3, 5, 1 << 30, -1, 0], np.int32))
            on.run("store_cells", on.put(rows), c_int64(64), 1, 64, numbers, c_int64(5), ctypes.byref(cells), two)
            bits = on.get(cells.elements, (9, 64), {"F32": np.uint32, "F16": np.uint16, "Q8_0": np.int8}[type_name])
            assert bits.any(axis=1).nonzero()[0].tolist() == [3, 5], type_name


@pytest.mark.parametrize("unit", ["silu_mul", "gelu_mul", "swiglu_oai", "relu_mul"])
def test_gated_unit(unit: str, order: str) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, -3.4e38, 88.72284, 89.5, -87.33655, -103.9, -101.0]
    gate = np.concatenate([special, np.linspace(-120, 120, 1500)]).astype(np.float32)
    up = gate[::-1].copy()
    with device() as on:
        p = on.put(gate)
        on.run("gated_unit", {"silu_mul": 0, "gelu_mul": 1, "swiglu_oai": 2, "relu_mul": 3}[unit], p, on.put(up),
               c_int64(gate.size), p)  # fmt: skip
        assert_same_bits(on.get(p, gate.shape), _testing.gated_unit("scalar", unit, gate, up), unit)


def test_elementwise(order: str) -> None:
    rng = np.random.default_rng(1)
    x, gate = random_rows(rng, 3, 70), random_rows(rng, 3, 70)
    weights = rng.uniform(0, 1, (3, 2)).astype(np.float32)
    with device() as on:
        out = on.alloc(6 * 70 * 4)
        on.run("weigh_inputs", on.put(x), on.put(weights), c_int64(3), 2, c_int64(70), out)
        assert_same_bits(on.get(out, (3, 2, 70)), x[:, None] * weights[..., None])
        for per_row in (False, True):
            y = on.put(x)
            source = gate[:, 0].copy() if per_row else gate
            on.run("sigmoid_gate", y, on.put(source), int(per_row), c_int64(3), c_int64(70))
            want = sigmoid(source.ravel()).reshape(source.shape)
            assert_same_bits(on.get(y, (3, 70)), x * (want[:, None] if per_row else want))
        for scale, cap in ((0.3, 0.0), (1.0, 30.0), (2.0, 5.0)):
            y = on.put(x)
            on.run("scale_softcap", y, c_int64(x.size), c_float(scale), c_float(cap))
            want = x * np.float32(scale)
            if cap:
                c = np.float32(cap)
                e = _testing.exp("scalar", (want * (np.float32(2) / c)).ravel()).reshape(want.shape)
                want = c * (np.float32(1) - np.float32(2) / (e + np.float32(1)))
            assert_same_bits(on.get(y, (3, 70)), want)
        for limit in (0.0, 0.5):
            odd = x.copy()
            odd[0, :5] = [np.nan, np.inf, -np.inf, -0.0, 0.5]
            y = on.put(odd)
            on.run("clamp", y, c_int64(x.size), c_float(limit))
            assert_same_bits(on.get(y, (3, 70)), np.clip(odd, -limit, limit) if limit else odd)
