"""Which experts are copied to a device: against every subset."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from expertree._core import _testing

FREE: dict[str, Any] = {"n_device_experts": 0, "n_device_rows": 0, "stage": 0.0}


def layer_seconds(rows: list[int], copied: tuple[int, ...], c: dict[str, Any]) -> float:
    """As expert_split.h says it."""
    kept = [n for i, n in enumerate(rows) if i not in copied]
    cpu = len(copied) * c["stage"] + sum(c["run_base"] + c["run_row"] * n for n in kept)
    there = [c["device_base"] + c["device_row"] * rows[i] for i in copied]
    device = c["n_device_experts"] * c["device_base"] + c["n_device_rows"] * c["device_row"] + sum(there)
    return max(cpu, device, len(copied) * c["copy"] + max(there, default=0.0))


def test_by_hand() -> None:
    costs = {"run_base": 1.0, "run_row": 0.0, "device_base": 0.01, "device_row": 0.0, "most": 9}
    # The link takes as long as the CPU: half each.
    assert len(_testing.split_experts(**costs, **FREE, copy=1.0, n_rows=[1] * 8)) == 4
    assert _testing.split_experts(**costs, **FREE, copy=100.0, n_rows=[1] * 8) == []
    assert len(_testing.split_experts(**costs, **FREE, copy=0.01, n_rows=[1] * 8)) == 8
    # No more than there are slots for.
    assert len(_testing.split_experts(**{**costs, "most": 3}, **FREE, copy=0.01, n_rows=[1] * 8)) == 3
    # Staging costs the CPU as much as running would: nothing is gained.
    assert _testing.split_experts(**costs, **{**FREE, "stage": 1.0}, copy=0.1, n_rows=[1] * 8) == []
    # The one with most rows goes.
    by_rows = {**costs, "run_base": 0.0, "run_row": 1.0}
    assert _testing.split_experts(**by_rows, **FREE, copy=4.0, n_rows=[1, 2, 9, 1]) == [2]


def test_no_choice_is_much_better() -> None:
    """No subset by more than a quarter (the last run matters); none at all of those that copy the most rows."""
    rng = np.random.default_rng(4)
    n_mixed = 0
    for _ in range(300):
        rows = [int(n) for n in rng.integers(1, 12, int(rng.integers(1, 8)))]
        costs: dict[str, Any] = {
            "run_base": float(rng.uniform(0.2, 2)), "run_row": float(rng.uniform(0.05, 1)),
            "device_base": float(rng.uniform(0, 0.2)), "device_row": float(rng.uniform(0, 0.05)),
            "copy": float(rng.uniform(0.1, 4)), "stage": float(rng.uniform(0, 0.2)),
            "n_device_experts": int(rng.integers(0, 4)), "n_device_rows": int(rng.integers(0, 9)), "most": len(rows),
        }  # fmt: skip
        chosen = tuple(_testing.split_experts(**costs, n_rows=rows))
        subsets = itertools.chain.from_iterable(
            itertools.combinations(range(len(rows)), n) for n in range(len(rows) + 1)
        )
        best = min(layer_seconds(rows, subset, costs) for subset in subsets)
        seconds = layer_seconds(rows, chosen, costs)
        assert seconds <= 1.25 * best, (rows, costs)
        by_rows = sorted(range(len(rows)), key=lambda i: -rows[i])
        first = [tuple(by_rows[:n]) for n in range(len(rows) + 1)]
        assert seconds <= min(layer_seconds(rows, subset, costs) for subset in first) * (1 + 1e-9)
        n_mixed += 0 < len(chosen) < len(rows)
    assert n_mixed > 50
