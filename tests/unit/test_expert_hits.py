"""Hit rates foretold from 44 steps, against what the pager's policies then do with the steps that follow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from expertree import _core
from expertree.expert_hits import hit_rate_by_frequency, hit_rate_by_recency
from expertree.expert_plan import LayerSlots, predict
from expertree.expert_record import ExpertRecord

N_LAYERS, N_EXPERTS, N_USED = 16, 128, 8
SHORT, REST = 44, 200
SHARES = (0.25, 0.36, 0.58, 0.8)
Ids = npt.NDArray[np.int32]


def draw(rng: np.random.Generator, log_chance: npt.NDArray[np.float64], n_steps: int) -> Ids:
    """N_USED different experts of each step, by chance: (n_steps, N_USED). log_chance: of each step, or of all."""
    noise = rng.gumbel(size=(n_steps, N_EXPERTS))
    return np.argsort(-(log_chance + noise), axis=1)[:, :N_USED].astype(np.int32)


def wander(rng: np.random.Generator, n_steps: int) -> npt.NDArray[np.float64]:
    """Preferences that change within some twenty steps; in the long run all experts are alike."""
    at, states = rng.normal(size=N_EXPERTS), []
    for _ in range(n_steps):
        at = 0.95 * at + np.sqrt(1 - 0.95**2) * rng.normal(size=N_EXPERTS)
        states.append(2 * at)
    return np.array(states)


def routing(kind: str, n_steps: int) -> _core.RoutingTrace:
    rng = np.random.default_rng(3)
    ids = np.empty((N_LAYERS, n_steps, N_USED), np.int32)
    for layer in range(N_LAYERS):
        place = rng.permutation(N_EXPERTS)
        chances = {
            "even": np.zeros(N_EXPERTS),
            "power law": -0.8 * np.log(1.0 + place),
            "few hot": np.where(place < 16, np.log(10.0), 0.0),
            "layers differ": -1.2 * layer / N_LAYERS * np.log(1.0 + place),
        }
        ids[layer] = draw(rng, wander(rng, n_steps) if kind == "local" else chances[kind], n_steps)
    return _core.RoutingTrace.of_tokens(ids, N_EXPERTS)


def record_of(trace: _core.RoutingTrace, n_steps: int) -> ExpertRecord:
    rates, reuse = (np.array(v, np.float32).reshape(trace.n_layers, trace.n_experts) for v in trace.use(n_steps))
    return ExpertRecord(rates, n_rows=n_steps, reuse=reuse)


def foretold(record: ExpertRecord, share: float) -> float:
    layers = [LayerSlots(N_EXPERTS, 1000, 900)] * N_LAYERS
    return predict(layers, int(share * N_LAYERS * N_EXPERTS) * 1000, N_USED, record).hit_rate


def measured(trace: _core.RoutingTrace, n_seen: int, share: float) -> float:
    """By the better one of the policies that "auto" picks from, in the steps after n_seen."""
    n_slots = [int(share * N_LAYERS * N_EXPERTS)]
    results = [
        _core.simulate_cache(trace, [0] * N_LAYERS, n_slots, policy, [], n_seen) for policy in ("lru", "layer-lfu")
    ]
    return max(result["hits"] / result["uses"] for result in results)


@pytest.mark.parametrize("n_steps", [8, SHORT, 600])
def test_even_use_hits_by_room_alone(n_steps: int) -> None:
    record = record_of(routing("even", n_steps), n_steps)
    for share in SHARES:
        assert foretold(record, share) == pytest.approx(share, abs=0.01 if n_steps >= SHORT else 0.03)
    assert foretold(record, 1.0) == 1


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("power law", 0.07), ("few hot", 0.03), ("layers differ", 0.05), ("local", 0.08)]
)
def test_a_short_record_foretells_what_comes(kind: str, tolerance: float) -> None:
    trace = routing(kind, SHORT + REST)
    short, long = record_of(trace, SHORT), record_of(trace, SHORT + REST)
    for share in SHARES:
        truth = measured(trace, SHORT, share)
        assert foretold(short, share) == pytest.approx(truth, abs=tolerance)
        assert foretold(long, share) == pytest.approx(truth, abs=0.03)


def test_what_each_part_is_for() -> None:
    """Counts know what stays, the order of use knows what passes; neither alone would do."""
    skewed, local = (record_of(routing(kind, 300), 300) for kind in ("power law", "local"))
    n_slots, share = int(0.25 * N_LAYERS * N_EXPERTS), 0.25
    for record, by_frequency_wins in ((skewed, True), (local, False)):
        by_frequency = hit_rate_by_frequency(record.rates, record.n_rows, n_slots)
        assert record.reuse is not None
        by_recency = hit_rate_by_recency(record.reuse, share)
        assert by_frequency is not None and by_recency is not None
        assert abs(by_frequency - by_recency) > 0.1
        assert (by_frequency > by_recency) == by_frequency_wins


def test_leaving_one_step_out_by_hand() -> None:
    """Against counting it out, step by step."""
    rng = np.random.default_rng(5)
    ids = draw(rng, -0.8 * np.log(1.0 + np.arange(N_EXPERTS)), SHORT)
    counts = np.bincount(ids.ravel(), minlength=N_EXPERTS)
    for n_slots in (16, 46, 74, 102):
        found = 0.0
        for step in ids:
            others = counts - np.bincount(step, minlength=N_EXPERTS)
            for expert in step:
                ahead, level = (others > others[expert]).sum(), (others == others[expert]).sum()
                found += min(max((n_slots - ahead) / level, 0.0), 1.0)
        got = hit_rate_by_frequency((counts / SHORT).astype(np.float32), SHORT, n_slots)
        assert got == pytest.approx(found / ids.size, abs=0.004)
    assert hit_rate_by_frequency(np.zeros((2, 8), np.float32), 0, 4) is None


def test_reuse_is_the_lru_caches_hits() -> None:
    """The shares up to a place are the hits of an LRU cache with that many slots; later steps weigh more."""
    rng = np.random.default_rng(9)
    ids = draw(rng, np.linspace(0, 3, N_EXPERTS), 30)
    _, reuse = _core.RoutingTrace.of_tokens(ids[None], N_EXPERTS).use(30)
    order, expected = list(range(N_EXPERTS)), np.zeros(N_EXPERTS)
    for n_before, step in enumerate(ids):
        used = set(step.tolist())
        for expert in used:
            expected[order.index(expert)] += n_before
        order = [e for e in order if e in used] + [e for e in order if e not in used]
    np.testing.assert_allclose(reuse, expected / expected.sum(), rtol=1e-5)
    assert hit_rate_by_recency(np.zeros((2, 8), np.float32), 0.5) is None
    assert hit_rate_by_recency(np.array([[0.5, 0.25, 0.25, 0]], np.float32), 0.625) == pytest.approx(0.875)
