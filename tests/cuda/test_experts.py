"""Fused experts (grouped rows, gate, up and their unit, down, sum in rank order) against the scalar kernels."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64
from dataclasses import dataclass, field

import numpy as np
import pytest
from expertree._core import _testing
from kernels import (
    UNITS,
    Device,
    ExpertGroups,
    ExpertGroupsOut,
    ExpertMatrix,
    call,
    device,
    pack,
    packed_layout,
    product_input,
    type_number,
)
from weights import QUANTISED, assert_same_bits, random_rows, random_weights

CANARY = np.float32(7.25)


@dataclass
class Experts:
    """The experts of a layer on the host."""

    types: tuple[str, str, str]  # gate, up, down
    n_experts: int
    n_embd: int
    n_ff: int
    unit: str = "silu_mul"
    biased: bool = False
    scaled: bool = False
    seed: int = 0
    weights: list[list[np.ndarray]] = field(default_factory=list)  # [matrix][expert]
    biases: list[np.ndarray | None] = field(default_factory=list)
    scales: list[np.ndarray | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        for matrix, type_name in enumerate(self.types):
            rows, k = self.shape(matrix)
            distinct = [random_weights(rng, type_name, rows, k) for _ in range(min(self.n_experts, 7))]
            self.weights.append([distinct[e % 7] for e in range(self.n_experts)])
            bias = rng.standard_normal((self.n_experts, rows)).astype(np.float32)
            scale = rng.uniform(0.5, 2.0, self.n_experts).astype(np.float32)
            self.biases.append(bias if self.biased else None)
            self.scales.append(scale if self.scaled else None)

    def shape(self, matrix: int) -> tuple[int, int]:
        return (self.n_embd, self.n_ff) if matrix == 2 else (self.n_ff, self.n_embd)

    def product(self, matrix: int, expert: int, x: np.ndarray) -> np.ndarray:
        y = _testing.matmul("scalar", self.types[matrix], self.weights[matrix][expert], x)
        scale, bias = self.scales[matrix], self.biases[matrix]
        if scale is not None:
            y = y * scale[expert]
        return y if bias is None else y + bias[expert]

    def outputs(self, x: np.ndarray, expert: int) -> np.ndarray:
        gate, up = self.product(0, expert, x), self.product(1, expert, x)
        hidden = np.array([_testing.gated_unit("scalar", self.unit, g, u) for g, u in zip(gate, up, strict=True)])
        return self.product(2, expert, hidden.reshape(gate.shape))


def put_experts(on: Device, experts: Experts, resident: np.ndarray) -> tuple[list[ExpertMatrix], ctypes.c_void_p]:
    """Each resident expert in a slot of its own: gate, up and down behind one another."""
    offsets, size = [], 0
    for matrix, type_name in enumerate(experts.types):
        offsets.append(size)
        size += packed_layout(type_name, *experts.shape(matrix)).bytes
    slots: list[int | None] = []
    for e in range(experts.n_experts):
        slot = on.alloc(size).value if resident[e] else None
        slots.append(slot)
        for matrix, type_name in enumerate(experts.types):
            if slot is not None:
                at = slot + offsets[matrix]
                pack(on, type_name, experts.weights[matrix][e], experts.shape(matrix)[1], at)
    table = on.pointers(slots)
    matrices = [
        ExpertMatrix(
            type_number(type_name), *experts.shape(matrix), table, offsets[matrix],
            on.put(experts.scales[matrix]), on.put(experts.biases[matrix]),
        )
        for matrix, type_name in enumerate(experts.types)
    ]  # fmt: skip
    return matrices, table


def group(on: Device, chosen: np.ndarray, n_experts: int, table: ctypes.c_void_p, per_slot: bool,
          room: int = 0) -> ExpertGroupsOut:  # fmt: skip
    """room: with so many rows more, of which nothing may be read."""
    n_rows, n_used = chosen.shape[0] + room, chosen.shape[1]
    sizes = (n_experts, 1, n_experts, 1, n_experts + 1, chosen.size, chosen.size)
    out = ExpertGroupsOut(*[on.put(np.full(size, -9, np.int32)) for size in sizes])
    rows = on.put(np.concatenate([chosen, np.zeros((room, n_used), chosen.dtype)]))
    there = on.put(np.array([chosen.shape[0]], np.int32)) if room else None
    on.run("group_slots", rows, n_rows, n_used, n_experts, int(per_slot), table, ctypes.byref(out), there)
    return out


def run_experts(experts: Experts, x: np.ndarray, chosen: np.ndarray, weights: np.ndarray, *, resident: np.ndarray,
                dp4a_rows: int, per_slot: bool = False) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Outputs of each slot, [n_rows * n_used, n_embd], and their sums, [n_rows, n_embd]."""
    n_rows, n_used = chosen.shape
    with device() as on:
        (gate, up, down), table = put_experts(on, experts, resident)
        grouped = group(on, chosen, experts.n_experts, table, per_slot)
        most = int(np.bincount(chosen.ravel()).max())
        groups = ExpertGroups(
            grouped.active, grouped.n_active, grouped.begin, grouped.x_row, grouped.slot,
            chosen.size, min(experts.n_experts, chosen.size), most, dp4a_rows,
        )  # fmt: skip
        hidden = on.put(np.full((chosen.size, experts.n_ff), CANARY))
        scratch = on.alloc(chosen.size * experts.n_ff * 4)
        inputs = [product_input(on, experts.types[i], x) for i in range(2)]
        on_gate, on_up, on_down = (ctypes.byref(m) for m in (gate, up, down))
        call(
            "expert_hidden", on_gate, on_up, UNITS[experts.unit], ctypes.byref(inputs[0]), ctypes.byref(inputs[1]),
            ctypes.byref(groups), hidden, c_int64(experts.n_ff), scratch, on.stream,
        )  # fmt: skip
        # The quantiser takes its rows from the device; a test may take them there by way of the host.
        rows = on.get(hidden, (chosen.size, experts.n_ff))
        hidden_input = product_input(on, experts.types[2], rows)
        out = on.put(np.full((chosen.size, experts.n_embd), CANARY))
        on.run("expert_down", on_down, ctypes.byref(hidden_input), ctypes.byref(groups), out, c_int64(experts.n_embd))
        outputs = on.get(out, (chosen.size, experts.n_embd))
        y = on.alloc(n_rows * experts.n_embd * 4)
        on.run("sum_experts", out, on.put(weights), n_rows, n_used, c_int64(experts.n_embd), None, c_float(1.0), y)
        return outputs, on.get(y, (n_rows, experts.n_embd))


def check(experts: Experts, chosen: np.ndarray, dp4a_rows: int = 8, resident: np.ndarray | None = None,
          per_slot: bool = False) -> None:  # fmt: skip
    rng = np.random.default_rng(experts.seed + 1)
    n_rows, n_used = chosen.shape
    resident = np.ones(experts.n_experts, bool) if resident is None else resident
    x = random_rows(rng, chosen.size if per_slot else n_rows, experts.n_embd)
    weights = rng.uniform(0, 1, chosen.shape).astype(np.float32)
    outputs, sums = run_experts(experts, x, chosen, weights, resident=resident, dp4a_rows=dp4a_rows, per_slot=per_slot)
    want = np.full_like(outputs, CANARY)
    for e in np.unique(chosen):
        slots = np.flatnonzero(chosen.ravel() == e)
        if resident[e]:
            want[slots] = experts.outputs(x[slots if per_slot else slots // n_used], int(e))
    assert_same_bits(outputs, want, f"{experts.types} {experts.unit} dp4a up to {dp4a_rows}")
    for row in range(n_rows):
        total = np.zeros(experts.n_embd, np.float32)
        for rank in range(n_used):
            total = _testing.axpy("scalar", float(weights[row, rank]), want[row * n_used + rank], total)
        assert_same_bits(sums[row], total, "sum")


def spread(rng: np.random.Generator, n_rows: int, n_used: int, n_experts: int) -> np.ndarray:
    return np.array([rng.permutation(n_experts)[:n_used] for _ in range(n_rows)], np.int32)


def width(type_name: str) -> int:
    return 256 if type_name.endswith("_K") or type_name == "IQ4_XS" else 32


@pytest.mark.parametrize("type_name", [*QUANTISED, "F16", "BF16", "F32"])
def test_experts_of_every_format(type_name: str, order: str) -> None:
    n = width(type_name)
    experts = Experts((type_name,) * 3, 5, 2 * n, n, seed=len(type_name))
    chosen = spread(np.random.default_rng(5), 11, 2, 4)  # one expert has no row
    chosen[:, 0] = np.where(np.arange(11) < 9, 0, chosen[:, 0])  # and one more than eight
    chosen[:, 1] = np.where(chosen[:, 1] == chosen[:, 0], 3, chosen[:, 1])
    check(experts, chosen)


@pytest.mark.parametrize("unit", UNITS)
def test_units_biases_and_scales(unit: str, order: str) -> None:
    for types in (("Q4_K", "Q4_K", "Q6_K"), ("MXFP4",) * 3):
        experts = Experts(types, 3, 512, 256, unit=unit, biased=True, scaled=True, seed=3)
        for dp4a_rows in (0, 8):
            check(experts, spread(np.random.default_rng(1), 10, 2, 3), dp4a_rows)


def test_formats_that_differ(order: str) -> None:
    for types in (("Q4_K", "Q6_K", "Q8_0"), ("Q8_0", "F16", "Q4_K"), ("MXFP4", "Q2_K", "BF16")):
        check(Experts(types, 4, 256, 512, biased=True, seed=9), spread(np.random.default_rng(2), 9, 2, 4))


@pytest.mark.parametrize("n_rows", [1, 2, 8, 9, 33, 70])
def test_all_rows_on_one_expert(n_rows: int, order: str) -> None:
    experts = Experts(("Q4_K", "Q4_K", "Q5_K"), 3, 256, 256, seed=4)
    chosen = np.full((n_rows, 1), 1, np.int32)
    for dp4a_rows in (0, 8, 1000):
        check(experts, chosen, dp4a_rows)


def test_ragged_widths(order: str) -> None:
    for n_embd, n_ff in ((32, 96), (160, 32), (96, 224), (544, 288)):
        experts = Experts(("MXFP4", "MXFP4", "Q8_0"), 3, n_embd, n_ff, unit="swiglu_oai", seed=n_ff)
        for dp4a_rows in (0, 8):
            check(experts, spread(np.random.default_rng(6), 6, 2, 3), dp4a_rows)


def test_many_experts(order: str) -> None:
    experts = Experts(("Q4_K", "Q4_K", "Q4_K"), 300, 256, 256, seed=8)
    check(experts, spread(np.random.default_rng(3), 12, 8, 300))


def test_experts_that_are_elsewhere(order: str) -> None:
    experts = Experts(("Q4_K", "Q4_K", "Q6_K"), 6, 256, 256, seed=2)
    resident = np.array([1, 0, 1, 0, 1, 1], bool)
    check(experts, spread(np.random.default_rng(7), 12, 3, 6), resident=resident)
    check(experts, spread(np.random.default_rng(7), 12, 3, 6), resident=np.zeros(6, bool))


def test_weighted_inputs(order: str) -> None:
    experts = Experts(("Q4_K", "Q4_K", "Q4_K"), 4, 256, 256, seed=2)
    check(experts, spread(np.random.default_rng(4), 7, 2, 4), per_slot=True)


@pytest.mark.parametrize(("n_experts", "n_rows", "n_used"), [(1, 3, 1), (8, 1, 2), (300, 40, 8), (1024, 5, 16)])
def test_grouping(n_experts: int, n_rows: int, n_used: int, order: str) -> None:
    rng = np.random.default_rng(n_experts)
    chosen = spread(rng, n_rows, n_used, n_experts)
    resident = rng.random(n_experts) < 0.6
    with device() as on:
        table = on.pointers([16 if r else None for r in resident])
        for per_slot, room in ((False, 0), (True, 0), (False, 3)):
            out = group(on, chosen, n_experts, table, per_slot, room)
            slot, x_row = (on.get(p, (chosen.size,), np.int32) for p in (out.slot, out.x_row))
            begin = on.get(out.begin, (n_experts + 1,), np.int32)
            order_of_slots = np.argsort(chosen.ravel(), kind="stable")
            np.testing.assert_array_equal(slot, order_of_slots)
            np.testing.assert_array_equal(x_row, order_of_slots if per_slot else order_of_slots // n_used)
            counts = np.bincount(chosen.ravel(), minlength=n_experts)
            np.testing.assert_array_equal(begin, np.concatenate([[0], np.cumsum(counts)]))
            for ids, n, want in (
                (out.active, out.n_active, np.flatnonzero((counts > 0) & resident)),
                (out.missing, out.n_missing, np.flatnonzero((counts > 0) & ~resident)),
            ):
                found = on.get(n, (1,), np.int32)[0]
                np.testing.assert_array_equal(on.get(ids, (n_experts,), np.int32)[:found], want)


def test_sum_with_what_ran_beside(order: str) -> None:
    rng = np.random.default_rng(0)
    n_rows, n_used, n = 3, 4, 200
    out, beside = random_rows(rng, n_rows * n_used, n), random_rows(rng, n_rows, n)
    for scale in (1.0, 0.75):
        with device() as on:
            y = on.put(beside)
            on.run("sum_experts", on.put(out), None, n_rows, n_used, c_int64(n), y, c_float(scale), y)
            got = on.get(y, (n_rows, n))
            on.run("sum_experts", on.put(out), None, n_rows, n_used, c_int64(n), None, c_float(scale), y)
            alone = on.get(y, (n_rows, n))
        for row in range(n_rows):
            total = np.zeros(n, np.float32)
            for rank in range(n_used):
                total = _testing.axpy("scalar", 1.0, out[row * n_used + rank], total)
            assert_same_bits(got[row], (total + beside[row]) * np.float32(scale))
            assert_same_bits(alone[row], total * np.float32(scale))
