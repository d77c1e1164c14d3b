"""Prices of a step: against plain Python, learned from steps with planted costs, and by where experts are."""

from __future__ import annotations

import numpy as np
import pytest
from draft_trees import random_priced_tree
from expertree._core import _testing
from pytest import approx

LAYERS, EXPERTS = 3, 8


def test_step_seconds_is_the_sum_over_the_union() -> None:
    rng = np.random.default_rng(1)
    for n_nodes, n_layers, n_experts, n_used in [(0, 2, 8, 2), (1, 1, 4, 4), (7, 4, 16, 3), (32, 5, 70, 6)]:
        for _ in range(10):
            tree = random_priced_tree(rng, n_nodes, n_layers, n_experts, n_used)
            cost = tree.cost()
            for n in {0, n_nodes // 2, n_nodes}:
                nodes = sorted(int(v) for v in rng.permutation(n_nodes)[:n])
                assert cost.step_seconds(tree.sets, n_experts, nodes) == approx(tree.step_seconds(nodes), rel=1e-12)
                assert cost.step_seconds(None, 0, nodes) == tree.iteration[n]


def make_cost(**costs: float) -> _testing.MeasuredCost:
    cost = _testing.MeasuredCost([1e6] * LAYERS, EXPERTS)
    cost.set_costs(**{"read_bytes_per_second": 1e9, "run_base": 1e-4, "run_row": 1e-5, **costs})
    return cost


def test_prices_by_place() -> None:
    cost = make_cost()
    cost.place(1, 2, "missing")
    cost.place(1, 3, "in flight")
    assert cost.read_seconds(1, 1) == 0.0
    assert cost.read_seconds(1, 2) == approx(1e-3)
    assert cost.read_seconds(1, 3) == approx(0.5e-3)
    assert cost.read_seconds(0, 2) == 0.0
    assert cost.run_seconds(1, 2, 1) == approx(1.1e-4)
    assert cost.run_seconds(1, 2, 5) == approx(1.5e-4)
    assert cost.run_seconds(1, 2, 0) == 0.0
    prices = [cost.read_seconds(1, e) for e in range(4)]
    assert cost.expert_prices(1, [0, 1, 2, 3]) == [approx((read, 1.1e-4, 1e-5)) for read in prices]


def test_an_expert_on_a_device_costs_what_it_costs_there() -> None:
    cost = make_cost(device_base=1e-5, device_row=1e-6)
    cost.place(1, 2, "on device")
    assert cost.read_seconds(1, 2) == 0.0
    assert cost.run_seconds(1, 2, 1) == approx(1.1e-5)
    assert cost.run_seconds(1, 2, 5) == approx(1.5e-5)
    assert cost.expert_prices(1, [1, 2]) == [approx((0.0, 1.1e-4, 1e-5)), approx((0.0, 1.1e-5, 1e-6))]
    # What ran there is not taken for work of the CPU.
    cost.record(1, 10, 10, 5e-3 + 4 * 1.1e-4 + 6 * 1.1e-5, n_device_experts=6, n_device_rows=6)
    assert cost.base_seconds(1) == approx(5e-3)


def test_larger_experts_take_longer() -> None:
    cost = _testing.MeasuredCost([1e6, 3e6], EXPERTS)
    cost.set_costs(1e9, 2e-4, 0.0)
    for layer in range(2):
        cost.place(layer, 0, "missing")
    assert cost.read_seconds(1, 0) == approx(3 * cost.read_seconds(0, 0))
    assert cost.run_seconds(0, 0, 1) == approx(1e-4)
    assert cost.run_seconds(1, 0, 1) == approx(3e-4)


def test_before_any_step_a_single_tokens_time_stands_in() -> None:
    cost = make_cost(step=0.02)
    assert cost.base_seconds(1) == cost.iteration_seconds(4) == 0.02
    assert _testing.MeasuredCost([], EXPERTS).base_seconds(3) == 0.0


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_planted_coefficients_are_recovered(noise: float) -> None:
    """A step is 5 ms + 0.4 ms a row, and what its experts take and are waited for."""
    rng = np.random.default_rng(2)
    cost = make_cost()
    for n in [*_testing.calibration_rows(33), *(int(n) for n in rng.integers(1, 20, 400))]:
        n_experts, n_expert_rows, wait = int(rng.integers(6, 24)), 6 * n, float(rng.uniform(0.0, 3e-3))
        base = (5e-3 + 4e-4 * n) * (1 + noise * float(rng.standard_normal()))
        cost.record(n, n_experts, n_expert_rows, base + 1e-4 * n_experts + 1e-5 * n_expert_rows + wait, wait)
    errors = [cost.base_seconds(n) / (5e-3 + 4e-4 * n) - 1 for n in range(1, 33)]
    print(f"\nbase seconds, noise {noise:.0%}: worst error {max(map(abs, errors)):.2%} over 1..32 rows")
    assert max(map(abs, errors)) < (0.07 if noise else 1e-9)
    assert cost.iteration_seconds(12) == approx(5e-3 + 4e-4 * 12 + 1.45e-3 + 7.2e-4 + 1.5e-3, rel=0.15)


def test_a_step_between_row_counts_is_learned() -> None:
    """Kernels take four rows at once: 1..4 cost the same."""
    cost = make_cost()
    for _ in range(200):
        for n in range(1, 13):
            cost.record(n, 0, 0, 1e-3 * (1 + (n - 1) // 4))
    assert cost.base_seconds(4) == approx(1e-3, rel=0.1)
    assert cost.base_seconds(5) == approx(2e-3, rel=0.1)


def test_what_trees_cost_survives_a_long_time_of_plain_decoding() -> None:
    cost = make_cost()
    for n in _testing.calibration_rows(32):
        cost.record(n, 0, 0, 1e-3 + 1e-4 * n)
    for _ in range(5000):
        cost.record(1, 0, 0, 1.1e-3)
    assert cost.base_seconds(32) == approx(4.2e-3, rel=0.02)
    assert cost.base_seconds(24) == approx(3.4e-3, rel=0.02)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    cost = make_cost()
    for scale in [1.0, 2.0]:
        for _ in range(300):
            for n in (1, 4, 8):
                cost.record(n, 0, 0, scale * (1e-3 + 1e-4 * n))
    for n in (1, 4, 6, 8):
        assert cost.base_seconds(n) == approx(2 * (1e-3 + 1e-4 * n), rel=0.01)


def test_the_correction_follows_what_experts_really_took() -> None:
    """Predictions see two of three experts: steps take 1.5 times what was said, until that is learned."""
    cost = make_cost()
    rng = np.random.default_rng(3)
    for _ in range(400):
        n_experts, n = int(rng.integers(6, 30)), int(rng.integers(1, 9))
        predicted = cost.base_seconds(n) + cost.correction * (1.1e-4 * n_experts)
        n_true = 1.5 * n_experts
        cost.record(n, round(n_true), round(n_true), 2e-3 + 1.1e-4 * round(n_true), predicted=predicted)
    print(f"\ncorrection, planted 1.5: {cost.correction:.3f}")
    assert cost.correction == approx(1.5, rel=0.03)
    assert cost.run_seconds(0, 0, 1) == approx(1.5 * 1.1e-4, rel=0.03)
    assert cost.base_seconds(4) == approx(2e-3, rel=0.01)


def test_what_is_waited_once_is_no_price_of_an_expert() -> None:
    """Passes take 5 ms and a third of what was said, with noise."""
    cost = make_cost()
    rng = np.random.default_rng(4)
    for _ in range(300):
        n_experts, n = int(rng.integers(6, 90)), int(rng.integers(1, 9))
        said = 1e-3 * n_experts
        waited = (5e-3 + said / 3) * float(rng.uniform(0.95, 1.05))
        predicted = cost.base_seconds(n) + cost.correction * said
        cost.record(n, 0, 0, 2e-3 + waited, wait=waited, predicted=predicted)
    assert cost.correction == approx(1 / 3, rel=0.1)
    assert cost.base_seconds(4) == approx(2e-3 + 5e-3, rel=0.2)
    again = make_cost()
    again.restore(cost.profile())
    assert again.base_seconds(4) == approx(cost.base_seconds(4))
    assert again.correction == cost.correction


def test_what_every_row_adds_is_no_price_of_an_expert() -> None:
    """Predictions say that nodes use the root's experts; in truth each row brings others, which take 7 ms."""
    cost = make_cost()
    rng = np.random.default_rng(5)
    for _ in range(60):
        n = int(rng.integers(1, 4))
        said = 1e-3 * int(rng.integers(8, 12))
        waited = (said + 7e-3 * (n - 1)) * float(rng.uniform(0.9, 1.1))
        predicted = cost.base_seconds(n) + cost.correction * said
        cost.record(n, 0, 0, 2e-3 + waited, wait=waited, predicted=predicted)
    assert cost.base_seconds(3) - cost.base_seconds(2) == approx(7e-3, rel=0.15)
    assert cost.correction == approx(1.0, rel=0.2)
    again = make_cost()
    again.restore(cost.profile())
    assert again.base_seconds(3) - again.base_seconds(2) == approx(cost.base_seconds(3) - cost.base_seconds(2))


def test_predictions_that_tell_nothing_lose_their_weight() -> None:
    """Two rows take twice as long as one, whatever was said of their experts."""
    cost = make_cost()
    rng = np.random.default_rng(6)
    most = 0.0
    for i in range(600):
        n = int(rng.integers(1, 3))
        said = 1e-3 * float(rng.uniform(1.0, 20.0))
        waited = 1e-2 * n * float(rng.uniform(0.8, 1.2))
        predicted = cost.base_seconds(n) + cost.correction * said
        cost.record(n, 0, 0, 2e-3 + waited, wait=waited, predicted=predicted)
        most = max(most, cost.correction) if i >= 100 else 0.0
    assert most < 0.3
    assert cost.base_seconds(2) - cost.base_seconds(1) == approx(1e-2, rel=0.2)


def test_the_correction_has_bounds_and_ignores_steps_that_nobody_priced() -> None:
    cost = make_cost()
    for _ in range(50):
        cost.record(1, 10, 10, 1.0)
    assert cost.correction == 1.0
    for _ in range(500):
        cost.record(1, 10, 10, 1e3, wait=1e3 - 1e-3, predicted=cost.base_seconds(1) + 1e-6)
    assert cost.correction == approx(8.0)


def test_drafting_time_is_a_mean_that_fades() -> None:
    cost = make_cost()
    assert cost.draft_seconds() == 0.0
    cost.record_draft(1e-3)
    assert cost.draft_seconds() == approx(1e-3)
    for _ in range(100):
        cost.record_draft(3e-3)
    assert cost.draft_seconds() == approx(3e-3, rel=1e-3)


def test_calibration_rows() -> None:
    assert _testing.calibration_rows(1) == [1]
    assert _testing.calibration_rows(33) == [1, 2, 4, 8, 16, 32, 33]
    assert _testing.calibration_rows(0) == []


def test_what_was_learned_can_be_kept() -> None:
    cost = make_cost()
    for n in [1, 2, 4, 8, 16]:
        cost.record(n, 6, 6 * n, 0.01 + 1e-3 * n)
    again = make_cost()
    again.restore(cost.profile())
    for n in [1, 3, 8, 16, 20]:
        assert again.base_seconds(n) == approx(cost.base_seconds(n), rel=1e-6)
        assert again.iteration_seconds(n) == approx(cost.iteration_seconds(n), rel=1e-6)
    assert again.correction == cost.correction == 1.0
    corrected = make_cost()
    corrected.restore((*cost.profile()[:3], 2.0, 0.0, 0.0))
    assert corrected.correction == 2.0 and corrected.run_seconds(0, 0, 1) == approx(2 * cost.run_seconds(0, 0, 1))
    # And the next run's own steps soon count for more.
    for _ in range(50):
        again.record(1, 0, 0, 0.5)
    assert again.iteration_seconds(1) == approx(0.5, rel=0.1)
