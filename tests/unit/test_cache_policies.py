"""The cache and its policies: by hand, against brute force, and every policy in the table alike."""

from __future__ import annotations

import numpy as np
import pytest
from belady_oracle import least_misses
from expertree import InvalidRequestError, OutOfMemoryError, _core
from expertree._core import _testing
from hypothesis import given, settings
from hypothesis import strategies as st

State, Why = _testing.SlotState, _testing.FillReason


def steps(requests: list[list[int]], n_experts: int = 8, n_layers: int = 1) -> _core.RoutingTrace:
    begin = np.concatenate([[0], np.cumsum([len(r) for r in requests])]).astype(np.int64)
    return _core.RoutingTrace.of_steps(
        begin, np.array([e for request in requests for e in request], np.int32), n_layers, n_experts
    )


def misses(requests: list[list[int]], slots: int, policy: str, n_experts: int = 8, n_layers: int = 1, **more) -> int:
    trace = steps(requests, n_experts, n_layers)
    got = _core.simulate_cache(trace, [0] * n_layers, [slots], policy, **more)
    assert got["uses"] == sum(len(r) for r in requests)
    assert got["uses"] - got["hits"] == sum(got["misses_by_layer"])
    return got["uses"] - got["hits"]


# ---- By hand


def test_lru_by_hand() -> None:
    # 0 1 2 | 0 hit | 3 evicts 1 | 1 evicts 2 | 0 hit
    assert misses([[0], [1], [2], [0], [3], [1], [0]], 3, "lru") == 5


def test_lru_is_worst_on_a_cycle() -> None:
    cycle = [[i % 4] for i in range(40)]
    assert misses(cycle, 3, "lru") == 40
    assert misses(cycle, 3, "belady") == 4 + 12  # after the first round every third one


def test_lfu_keeps_what_is_used_often() -> None:
    requests = [[0], [0], [0], [1], [2], [3], [4], [0]]
    assert misses(requests, 2, "lfu-decay") == 5
    assert misses(requests, 2, "lru") == 6


def test_lfu_decay_forgets() -> None:
    """0 was used 20 times, long ago; 1 and 2 are used now. Undecayed counts would keep 0, and miss 40 times."""
    requests = [[0]] * 20 + [[3]] * 700 + [[1], [2]] * 20
    assert misses(requests, 3, "lfu-decay") == 4


def test_layer_lfu_shares_slots_between_layers() -> None:
    """Layer 0 uses one expert always, layer 1 all of its own in turn: 5 slots hold what both need."""
    requests: list[list[int]] = []
    for step in range(60):
        requests += [[0], [step % 4]]
    assert misses(requests, 5, "layer-lfu", n_layers=2) == 5


def test_pinned_keeps_the_profiles_hot_set() -> None:
    profile = [0.9, 0.8, 0, 0, 0, 0, 0, 0]
    requests = [[0], [1], [2], [3], [4], [5], [0], [1]]
    assert misses(requests, 3, "pinned", profile=profile) == 6
    assert misses(requests, 3, "lru") == 8


def test_a_profile_makes_layer_lfu_start_warm() -> None:
    profile = [0.0, 0.9, 0.9, 0, 0, 0, 0, 0]
    requests = [[1], [2], [0], [3], [0], [4], [1], [2]]
    warm = [misses(r, 3, "layer-lfu", profile=profile) for r in (requests[:-2], requests)]
    assert warm == [6, 6]  # 1 and 2 are still there at the end
    assert [misses(r, 3, "lru") for r in (requests[:-2], requests)] == [5, 7]


# ---- What is counted


@pytest.mark.parametrize("policy", ["lru", "lfu-decay", "layer-lfu"])
def test_what_is_used_but_not_counted_teaches_nothing(policy: str) -> None:
    cache = cache_of(3, policy)
    for _ in range(9):
        cache.begin_step()
        cache.use(0)
    use(cache, 1)
    use(cache, 2)
    assert use(cache, 5) == 0


@pytest.mark.parametrize("policy", ["lfu-decay", "layer-lfu"])
def test_rows_of_a_pass_count_one_by_one(policy: str) -> None:
    cache = cache_of(3, policy)
    cache.count(0, [0, 1, 1, 0, 1, 2, 0], 4)  # 2 in one row of four, 0 and 1 in three
    assert use(cache, 5) == 2
    cache.count(0, [5, 5, 5, 5, 1, 1], 4)
    assert use(cache, 2) == 0


def test_old_rows_fade_by_the_rows_after_them() -> None:
    cache = cache_of(2)
    cache.count(0, [0] * 40, 40)
    cache.count(0, [3] * 500, 500)  # nearly eight half-lives
    cache.count(0, [1] * 4, 4)
    assert use(cache, 5) == 0


# ---- Beside a faster tier


def cache_of(n_slots: int, policy: str = "lfu-decay") -> _testing.ExpertCache:
    cache = _testing.ExpertCache(1, 8, [0], [n_slots], policy)
    for key in range(n_slots):
        use(cache, key)
    return cache


def use(cache: _testing.ExpertCache, key: int, why: _testing.FillReason = Why.demand) -> int:
    """The key evicted for it, -1 for none, -2 when it got no slot."""
    cache.begin_step()
    cache.count(0, [key])
    cache.use(key)
    if cache.find(key) >= 0:
        return -1
    slot, evicted = cache.take(key, why)
    if slot < 0:
        return -2
    cache.filled(slot)
    return int(evicted)


def test_what_a_faster_tier_holds_goes_first() -> None:
    cache = cache_of(3)
    for _ in range(5):
        use(cache, 0)
    cache.set_covered(0, True)
    assert use(cache, 5) == 0  # although it is used most
    cache.set_covered(0, False)
    assert use(cache, 6) != 5


def test_an_offer_is_taken_only_if_the_policy_likes_it_better() -> None:
    cache = cache_of(2)
    for _ in range(6):
        use(cache, 0)
        use(cache, 1)
    cache.begin_step()
    cache.begin_step()
    assert use(cache, 4, Why.offer) == -2
    for _ in range(20):
        cache.begin_step()
        cache.count(0, [4])
    cache.begin_step()
    cache.begin_step()
    assert use(cache, 4, Why.offer) in (0, 1)


def test_an_offer_evicts_nothing_that_was_just_used() -> None:
    cache = cache_of(2, "lru")
    use(cache, 0)
    assert use(cache, 4, Why.offer) == 1  # 0 was used in the step before
    use(cache, 4)
    use(cache, 0)
    assert use(cache, 5, Why.offer) == 4


def test_a_cleared_cache_is_as_new() -> None:
    cache = cache_of(3)
    cache.pin(cache.find(1))
    cache.clear()
    assert all(cache.find(key) < 0 for key in range(8))
    assert [use(cache, key) for key in (5, 6, 7)] == [-1, -1, -1]


# ---- Against brute force


REQUESTS = st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=2), min_size=1, max_size=11)


@settings(max_examples=150)
@given(requests=REQUESTS, slots=st.integers(2, 4))
def test_belady_is_the_best_there_is(requests: list[set[int]], slots: int) -> None:
    best = least_misses(tuple(frozenset(r) for r in requests), slots)
    assert misses([sorted(r) for r in requests], slots, "belady") == best


@pytest.mark.parametrize("policy", [p for p in _core.policy_names() if p not in ("belady", "pinned")])
@settings(max_examples=60)
@given(data=st.data())
def test_no_policy_beats_belady_and_all_hold_what_fits(policy: str, data: st.DataObject) -> None:
    n_layers = data.draw(st.integers(1, 3))
    n_steps = data.draw(st.integers(1, 20))
    requests = [
        sorted(data.draw(st.sets(st.integers(0, 7), min_size=1, max_size=3))) for _ in range(n_layers * n_steps)
    ]
    slots = data.draw(st.integers(3, 8 * n_layers))
    n = misses(requests, slots, policy, n_layers=n_layers)
    assert misses(requests, slots, "belady", n_layers=n_layers) <= n
    distinct = {(i % n_layers, e) for i, r in enumerate(requests) for e in r}
    assert n >= len(distinct)
    assert misses(requests, 8 * n_layers, policy, n_layers=n_layers) == len(distinct)


@pytest.mark.parametrize("policy", [p for p in _core.policy_names() if p != "pinned"])
def test_more_experts_than_slots_run_in_waves(policy: str) -> None:
    assert misses([list(range(8))] * 3, 1, policy) >= 8
    assert misses([list(range(8))] * 3, 7, policy) >= 8


def test_size_classes_do_not_mix() -> None:
    """Layers 0 and 2 share a class of one slot, layer 1 has its own."""
    trace = steps([[0], [1], [0]] * 10, n_layers=3)
    got = _core.simulate_cache(trace, [0, 1, 0], [1, 1], "lru")
    assert got["misses_by_layer"] == [10, 1, 10]


# ---- Slots (E3, E15)


def cache(n_slots: int, policy: str = "lru", n_experts: int = 8) -> _testing.ExpertCache:
    c = _testing.ExpertCache(1, n_experts, [0], [n_slots], policy)
    c.begin_step()
    return c


def fill(c: _testing.ExpertCache, key: int, why: Why = Why.demand) -> int:
    slot, _ = c.take(key, why)
    assert slot >= 0
    c.filled(slot)
    return slot


def test_e3_a_slot_being_filled_or_pinned_is_never_taken() -> None:
    c = cache(2)
    filling, _ = c.take(0, Why.demand)
    ready = fill(c, 1)
    c.pin(ready)
    assert c.take(2, Why.demand) == (-1, -1)
    c.filled(filling)
    assert c.take(2, Why.demand) == (filling, 0)
    assert c.find(0) == -1
    c.unpin(ready)
    assert c.take(3, Why.demand) == (ready, 1)


def test_a_failed_fill_frees_its_slot_when_the_last_one_lets_go() -> None:
    c = cache(1)
    slot, _ = c.take(0, Why.demand)
    c.pin(slot)
    c.pin(slot)
    c.failed(slot)
    assert c.state(slot) == State.failed
    c.unpin(slot)
    assert c.take(1, Why.demand) == (-1, -1)
    c.unpin(slot)
    assert (c.state(slot), c.find(0)) == (State.free, -1)
    assert c.take(1, Why.demand) == (slot, -1)


def test_e15_a_guess_evicts_nothing_that_this_or_the_last_step_used() -> None:
    c = cache(3)
    for key in range(3):
        c.use(key)
        fill(c, key)
    c.begin_step()
    c.use(0)
    assert c.take(5, Why.hint) == (-1, -1)  # 1 and 2 were used a step ago
    c.begin_step()
    c.use(0)
    assert c.take(5, Why.hint) == (1, 1)
    assert c.take(6, Why.background) == (-1, -1)


def test_demand_spares_fresh_hints_while_it_can() -> None:
    c = cache(2)
    fill(c, 0)
    c.begin_step()
    c.begin_step()
    hinted = fill(c, 1, Why.hint)
    assert c.take(2, Why.demand)[1] == 0
    c.filled(c.find(2))
    c.pin(c.find(2))
    assert c.take(3, Why.demand) == (hinted, 1)  # there is nothing else
    assert c.hints() == [0, 0, 1]


def test_hints_are_counted_in_time_late_and_wasted() -> None:
    c = cache(3)
    fill(c, 0, Why.hint)
    late, _ = c.take(1, Why.hint)
    fill(c, 2, Why.hint)
    c.count(0, [0, 1])
    c.use(0)
    c.use(0)
    c.use(1)
    c.filled(late)
    for _ in range(3):
        c.begin_step()
    for key in (3, 4, 5):
        fill(c, key)
    assert c.hints() == [1, 1, 1]


def test_e13_the_gate_closes_when_guesses_do_not_pay_and_opens_again() -> None:
    gate = _testing.HintGate()
    for step in range(100):  # all in time
        gate.begin_step(step * 8, 0, 0)
        assert gate.is_open
    gate.begin_step(800, 0, 80)  # 80 wasted
    assert not gate.is_open
    assert gate.n_closings == 1
    for _ in range(300):
        gate.begin_step(800, 0, 80)
    assert gate.is_open
    for n in range(1, 50):  # half in time and half late is worth it
        gate.begin_step(800 + 8 * n, 8 * n, 80)
    assert gate.is_open
    for n in range(1, 50):  # late ones alone are, too
        gate.begin_step(1192, 392 + 8 * n, 80)
    assert gate.is_open


# ---- Budgets


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    counts=st.lists(st.integers(1, 300), min_size=4, max_size=4),
    share=st.floats(0, 1.2),
)
def test_plans_never_exceed_the_budget_and_leave_no_room_unused(
    sizes: list[int], counts: list[int], share: float
) -> None:
    slot_bytes, n = [64 * s for s in sizes], counts[: len(sizes)]
    budget = int(share * sum(b * c for b, c in zip(slot_bytes, n, strict=True)))
    least = sum(slot_bytes)
    if budget < least:
        with pytest.raises(OutOfMemoryError, match=f"{least} bytes"):
            _core.plan_slots(slot_bytes, n, budget)
        return
    plan = _core.plan_slots(slot_bytes, n, budget)
    assert plan["bytes"] == sum(b * s for b, s in zip(slot_bytes, plan["slots"], strict=True)) <= budget
    assert all(1 <= s <= c for s, c in zip(plan["slots"], n, strict=True))
    assert all(s == c or plan["bytes"] + b > budget for b, s, c in zip(slot_bytes, plan["slots"], n, strict=True))
    assert plan["least_bytes"] == least


def test_a_plan_treats_classes_alike() -> None:
    plan = _core.plan_slots([1000, 2000], [1000, 1000], 1_500_000)
    assert all(abs(s - 500) <= 2 for s in plan["slots"])


# ---- Bad requests


def test_bad_requests_are_refused() -> None:
    trace = steps([[0]])
    for policy, said in (("fifo", "lru"), ("pinned", "profile")):
        with pytest.raises(InvalidRequestError, match=said):
            _core.simulate_cache(trace, [0], [1], policy)
    with pytest.raises(InvalidRequestError, match="trace"):
        _testing.ExpertCache(1, 8, [0], [1], "belady")
    for classes, slots in (([1], [1]), ([0, 0], [1]), ([0], [0])):
        with pytest.raises(InvalidRequestError, match="do not fit"):
            _core.simulate_cache(trace, classes, slots, "lru")
    with pytest.raises(InvalidRequestError, match="expert 9 of 8"):
        steps([[9]])
    with pytest.raises(InvalidRequestError, match="damaged"):
        _core.RoutingTrace.of_steps(np.array([0, 5], np.int64), np.array([1], np.int32), 1, 8)


def test_traces_come_back_as_they_were() -> None:
    ids = np.random.default_rng(0).integers(0, 8, (3, 5, 2)).astype(np.int32)
    trace = _core.RoutingTrace.of_tokens(ids, 8)
    assert (trace.n_steps, trace.n_layers, trace.n_experts) == (5, 3, 8)
    begin, experts = trace.arrays()
    assert (experts.reshape(5, 3, 2) == ids.transpose(1, 0, 2)).all()
    again = _core.RoutingTrace.of_steps(begin, experts, 3, 8)
    assert all((a == b).all() for a, b in zip(again.arrays(), (begin, experts), strict=True))
