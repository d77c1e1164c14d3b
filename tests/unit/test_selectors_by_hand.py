"""Selectors of published systems against examples worked by hand, and what controllers learn."""

from __future__ import annotations

import numpy as np
import pytest
from expertree._core import _testing
from pytest import approx

Selector = _testing.SelectorUnderTest


def flat_cost(iteration: list[float], base: list[float] | None = None, draft: float = 0.0) -> _testing.StepCost:
    """Experts that take no time: only the number of rows counts."""
    return _testing.table_cost(np.zeros((1, 64, 3)), base or iteration, iteration, draft)


def sets_of(*rows: list[int]) -> np.ndarray:
    """One layer; the root's row first."""
    return np.array([[row] for row in rows], np.int32)


#        root
#       /  |  \
#      0   1   2      0.6  0.3  0.1
#     / \
#    3   4            0.4  0.15
PARENTS = [-1, -1, -1, 0, 0]
SCORES = [0.6, 0.3, 0.1, 0.4, 0.15]
FREE = flat_cost([1.0])


def choose(spec: str, cost: _testing.StepCost = FREE, sets: np.ndarray | None = None) -> list[int]:
    return list(Selector(spec).select(PARENTS, SCORES, cost, sets, 64))


# ---- all, chain, threshold


def test_all_and_chain() -> None:
    assert choose("all") == [0, 1, 2, 3, 4]
    assert choose("chain:0") == []
    assert choose("chain:1") == [0]
    assert choose("chain:2") == [0, 3]
    assert choose("chain:9") == [0, 3]


@pytest.mark.parametrize(
    ("share", "nodes"),
    [("0.35", [0]), ("0.38", [0]), ("0.6", [0, 3]), ("0.65", [0, 1, 3]), ("0.9", [0, 1, 3, 4]), ("1", [0, 1, 2, 3, 4])],
)
def test_threshold(share: str, nodes: list[int]) -> None:
    """Sums in order of score: 0.6, 1.0, 1.3, 1.45, 1.55 of 1.55."""
    assert choose(f"threshold:{share}") == nodes


# ---- evict


def test_evict_takes_the_best_rate() -> None:
    """1 / 10, 1.6 / 11, 2.0 / 12, 2.3 / 15, 2.45 / 18, 2.55 / 21: two nodes."""
    assert choose("evict", flat_cost([10, 11, 12, 15, 18, 21])) == [0, 3]
    # Without the bonus 0.6 / 11, 1.0 / 12, 1.3 / 15, 1.45 / 18, ..: three.
    assert choose("evict:bonus=ignored", flat_cost([10, 11, 12, 15, 18, 21])) == [0, 1, 3]


def test_evict_decodes_plainly_when_rows_are_dear() -> None:
    cost = flat_cost([10, 17, 30, 45, 60, 75])
    assert choose("evict", cost) == []
    assert choose("evict:bonus=ignored", cost) == [0]  # it cannot say no


def test_evict_counts_drafting_as_part_of_an_iteration() -> None:
    """1 / 10 beats 1.6 / 17; with 5 more on both sides 1 / 15 loses to 1.6 / 22."""
    assert choose("evict", flat_cost([10, 17, 40, 60, 80, 99])) == []
    assert choose("evict", flat_cost([10, 17, 40, 60, 80, 99], draft=5.0)) == [0]


# ---- ecospec

# Node 1 shares all of its experts with the root, node 3 all of its with node 0.
SETS = sets_of([1, 2], [10, 11], [1, 2], [20, 21], [10, 11], [30, 31])


def test_ecospec_prices_again_after_each_pick() -> None:
    """Starts with B = {1, 2}. Values: 0: 0.6 / 3, 1: 0.3 / 1, 2: 0.1 / 3, 3: 0.4 / 3, 4: 0.15 / 5. Takes 1, then 0 at
    0.2; now 3 adds nothing: 0.4 / 1, before 4: 0.15 / 3, and that before 2: 0.1 / 3."""
    assert choose("ecospec:1", sets=SETS) == [1]
    assert choose("ecospec:2", sets=SETS) == [0, 1]
    assert choose("ecospec:3", sets=SETS) == [0, 1, 3]
    assert choose("ecospec:4", sets=SETS) == [0, 1, 3, 4]
    assert choose("ecospec:5", sets=SETS) == [0, 1, 2, 3, 4]
    assert choose("ecospec:99", sets=SETS) == [0, 1, 2, 3, 4]


def test_ecospec_with_an_empty_start() -> None:
    """Node 1 now costs two experts: 0: 0.6 / 3 = 0.2, 1: 0.3 / 3, 3: 0.4 / 3."""
    assert choose("ecospec:1,start=empty", sets=SETS) == [0]
    assert choose("ecospec:2,start=empty", sets=SETS) == [0, 3]
    assert choose("ecospec:3,start=empty", sets=SETS) == [0, 1, 3]


def test_ecospec_eps_weighs_experts_against_scores() -> None:
    """With eps 1000 the order is that of the scores; with eps 0.001 node 1, which is free, is worth 300."""
    assert choose("ecospec:2,eps=1000", sets=SETS) == [0, 3]
    assert choose("ecospec:1,eps=0.001", sets=SETS) == [1]


def test_ecospec_ties_go_to_the_shallower_node() -> None:
    """After node 0 its child, which adds nothing, is worth 0.25 / 1 and node 2, higher up and later, 0.5 / 2."""
    sets = sets_of([1], [2], [2], [4])
    assert Selector("ecospec:2").select([-1, 0, -1], [0.5, 0.25, 0.5], FREE, sets, 64) == [0, 2]
    assert Selector("ecospec:2").select([-1, 0, -1], [0.5, 0.251, 0.5], FREE, sets, 64) == [0, 1]


def test_ecospec_without_sets_is_the_order_of_scores() -> None:
    assert choose("ecospec:3") == [0, 1, 3]
    assert choose("ecospec-static:2") == [0, 3]


def test_ecospec_static_never_discounts() -> None:
    """Fixed: 0: 0.6 / 3, 1: 0.3 / 3, 2: 0.1 / 3, 3: 0.4 / 3 (the path 0, 3 has two experts), 4: 0.15 / 5 = 0.03: order
    0, 3, 1, 2, 4."""
    assert choose("ecospec-static:1", sets=SETS) == [0]
    assert choose("ecospec-static:2", sets=SETS) == [0, 3]
    assert choose("ecospec-static:3", sets=SETS) == [0, 1, 3]
    assert choose("ecospec-static:4", sets=SETS) == [0, 1, 2, 3]


def test_ecospec_counts_experts_of_all_layers() -> None:
    """Layer 1 makes node 1 dear: 0.3 / (0 + 2 + 1) = 0.1 against 0.6 / (2 + 0 + 1)."""
    second = sets_of([1, 2], [1, 2], [8, 9], [1, 2], [1, 2], [1, 2])
    sets = np.concatenate([SETS, second], axis=1)
    cost = _testing.table_cost(np.zeros((2, 64, 3)), [1.0], [1.0])
    assert Selector("ecospec:1").select(PARENTS, SCORES, cost, sets, 64) == [0]


# ---- s2moe


def s2moe_cost(draft: float) -> _testing.StepCost:
    """A plain iteration of 10, of which 2 are no experts: with two experts a row, one takes 4."""
    return flat_cost([10.0, 10.0], base=[2.0, 2.0], draft=draft)


def test_s2moe_admits_what_is_worth_its_new_experts() -> None:
    """C_draft = 1 a node. 0: 0.6 * 10 / (2 * 4 + 1) < 1, so 3 and 4 go with it; 1: 0.3 * 10 / 1; 2: 1 / 9."""
    assert choose("s2moe", s2moe_cost(5.0), SETS) == [1]
    # 0's experts are the root's, too: 6 / 1; then 3 adds 10 and 11 and loses, 4: 1.5 / 9 loses.
    sets = sets_of([1, 2], [1, 2], [1, 2], [20, 21], [10, 11], [30, 31])
    assert choose("s2moe", s2moe_cost(5.0), sets) == [0, 1]


def test_s2moe_counts_what_was_admitted_before() -> None:
    """0: 6 / (4 + 1) with its one new expert; 3, whose experts are 0's and the root's, 4 / 1; 1: 3 / (4 + 1) loses; 2
    has the same new expert as 0: 1 / 1, just enough."""
    sets = sets_of([1, 2], [1, 10], [1, 20], [2, 10], [2, 10], [30, 31])
    assert choose("s2moe", s2moe_cost(5.0), sets) == [0, 2, 3]


def test_s2moe_skips_a_nodes_subtree() -> None:
    """0 is refused; its child 3 has no new experts and would pay."""
    sets = sets_of([1, 2], [10, 11], [20, 21], [20, 21], [1, 2], [1, 2])
    assert choose("s2moe", s2moe_cost(5.0), sets) == []


def test_s2moe_without_sets_prices_rows() -> None:
    """A row adds 3.5: 0: 6, 3: 4, 1: 3 < 3.5; what follows has lower scores."""
    assert choose("s2moe", flat_cost([10 + 3.5 * k for k in range(6)])) == [0, 3]


# ---- cascade


class Decoding:
    """Feeds a selector with a chain of 8: `accepts(k)` tokens are accepted of k and an iteration takes `seconds(k)`."""

    def __init__(self, spec: str) -> None:
        self.selector = Selector(spec)
        self.cost = flat_cost([1.0])

    def step(self, accepts: dict[int, int], seconds: dict[int, float]) -> int:
        if not self.selector.wants_draft():
            self.selector.observe_plain(seconds[0])
            return 0
        nodes = self.selector.select([-1, 0, 1, 2, 3, 4, 5, 6], [0.9**k for k in range(1, 9)], self.cost, None, 0)
        k = len(nodes)
        self.selector.observe(nodes[: accepts[k]], 0.0, seconds[k])
        return k

    def run(self, n_steps: int, accepts: dict[int, int], seconds: dict[int, float]) -> list[int]:
        return [self.step(accepts, seconds) for _ in range(n_steps)]


def test_cascade_climbs_and_holds_the_best() -> None:
    """Utility: 1 -> 2 / 1.1, 2 -> 3 / 1.2 = 2.5, 3 -> 4 / 1.3 = 3.1, 4 -> 4 / 1.4: up until it falls."""
    seconds = {k: 1 + 0.1 * k for k in range(9)}
    accepts = {k: min(k, 3) for k in range(9)}
    ks = Decoding("cascade").run(4 + 3 * 4 + 16 + 8, accepts, seconds)
    assert ks[:4] == [0] * 4  # what plain decoding takes
    assert ks[4:16] == [2] * 4 + [3] * 4 + [4] * 4
    assert ks[16:32] == [3] * 16
    assert ks[32:] == [3] * 4 + [4] * 4  # the next test starts where the last one ended


def test_cascade_climbs_down() -> None:
    """One token is accepted: 1 -> 2 / 1.1, 2 -> 2 / 1.2, 3 -> 2 / 1.3."""
    seconds = {k: 1 + 0.1 * k for k in range(9)}
    accepts = {k: min(k, 1) for k in range(9)}
    ks = Decoding("cascade").run(4 + 12 + 16, accepts, seconds)
    assert ks[4:] == [2] * 4 + [3] * 4 + [1] * 4 + [1] * 16


def test_cascade_makes_at_most_four_trials() -> None:
    seconds = {k: 1 + 0.01 * k for k in range(9)}
    accepts = {k: k for k in range(9)}
    ks = Decoding("cascade").run(4 + 16 + 16, accepts, seconds)
    assert ks[4:] == [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4 + [5] * 16


def test_cascade_holds_plain_decoding_twice_as_long_each_time() -> None:
    """Nothing is accepted: every test says 1 at best, below 1, and the hold doubles."""
    seconds = {k: 1 + 0.5 * k for k in range(9)}
    accepts = dict.fromkeys(range(9), 0)
    decoding = Decoding("cascade")
    ks = decoding.run(400, accepts, seconds)
    plain_runs = [len(run) for run in "".join("0" if k == 0 else "x" for k in ks).split("x") if run]
    assert plain_runs[:4] == [4, 16, 32, 64]
    # Drafting pays again: held as long as ever, and the next plain hold is a short one.
    while decoding.step(accepts, seconds) == 0:
        pass
    good = {k: k for k in range(9)}
    cheap = {k: 1 + 0.01 * k for k in range(9)}
    decoding.run(60, good, cheap)
    ks = decoding.run(100, accepts, seconds)
    plain_runs = [len(run) for run in "".join("0" if k == 0 else "x" for k in ks).split("x") if run]
    assert plain_runs[0] == 16


def test_cascade_does_not_want_drafts_while_it_holds_plain_decoding() -> None:
    selector = Selector("cascade")
    for _ in range(4):
        assert not selector.wants_draft()
        selector.observe_plain(1.0)
    assert selector.wants_draft()


def test_cascade_cuts_another_selectors_choice() -> None:
    selector = Selector("cascade:all")
    for _ in range(4):
        selector.observe_plain(1.0)
    assert selector.select(PARENTS, SCORES, FREE, None, 0) == [0, 3]


# ---- residency


def test_residency_by_hand() -> None:
    """Root's expert 0 is in memory, and so is node 1's; node 0's takes 100 to read. Node 1 alone: 1.3 / 12 against
    1 / 11, 1.6 / 112 with node 0."""
    prices = np.zeros((1, 64, 3))
    prices[0, :, 1] = 1.0
    prices[0, 5, 0] = 100.0
    cost = _testing.table_cost(prices, [10.0], [11.0])
    sets = sets_of([0], [5], [6], [5], [5], [5])
    assert choose("residency", cost, sets) == [1]
    prices[0, 5, 0] = 0.0
    assert choose("residency", _testing.table_cost(prices, [10.0], [11.0]), sets) == [0, 1, 2, 3, 4]
    # Blind to places all cost the same, 20 on average for one row more or less.
    prices[0, 5, 0] = 100.0
    assert choose("residency:places=ignored", _testing.table_cost(prices, [10.0], [11.0]), sets) != [1]


def test_residency_sees_cheap_children_behind_a_dear_parent() -> None:
    """The parent's gain of 0.5 for 8 is below the rate so far, 1 / 10; with its three free children it is 1.7 for 8."""
    prices = np.zeros((1, 64, 3))
    prices[0, 7, 0] = 8.0
    cost = _testing.table_cost(prices, [10.0], [10.0])
    sets = sets_of([0], [7], [7], [7], [7])
    assert Selector("residency").select([-1, 0, 1, 2], [0.5, 0.45, 0.4, 0.35], cost, sets, 64) == [0, 1, 2, 3]
    assert Selector("residency").select([-1], [0.5], cost, sets_of([0], [7]), 64) == []


def test_residency_overlaps_reading_and_running() -> None:
    """The root's expert is being read for 10: running node 0's, in memory, meanwhile costs nothing."""
    prices = np.zeros((1, 64, 3))
    prices[0, 0] = [10.0, 1.0, 0.0]
    prices[0, 1] = [0.0, 8.0, 0.0]
    cost = _testing.table_cost(prices, [1.0], [1.0])
    assert Selector("residency").select([-1], [0.1], cost, sets_of([0], [1]), 64) == [0]
    prices[0, 0, 0] = 0.0
    cost = _testing.table_cost(prices, [1.0], [1.0])
    assert Selector("residency").select([-1], [0.1], cost, sets_of([0], [1]), 64) == []


def test_residency_learns_that_scores_promise_too_much() -> None:
    """Scores of 0.9 that are accepted one time in ten are not worth half a step."""
    cost = flat_cost([1.0, 1.5])
    selector = Selector("residency:guard=off")
    rng = np.random.default_rng(1)
    assert selector.select([-1], [0.9], cost, None, 0) == [0]
    for _ in range(300):
        nodes = selector.select([-1], [0.9], cost, None, 0)
        selector.observe(nodes if rng.random() < 0.1 else [], 0.0, 1.5 if nodes else 1.0)
    assert selector.select([-1], [0.9], cost, None, 0) == []


def test_an_unlucky_start_is_not_the_last_word() -> None:
    """Eight drafts in ten are right, but the first ones were not. Steps without verification tell nothing of that."""
    cost = flat_cost([1.0, 1.4])
    selector = Selector("residency:guard=off")
    rng = np.random.default_rng(1)
    n_unlucky = 0
    while nodes := selector.select([-1], [0.8], cost, None, 0):
        selector.observe([], 0.0, 1.4)
        n_unlucky += 1
    assert 1 <= n_unlucky < 40
    verified = 0
    for _ in range(400):
        nodes = selector.select([-1], [0.8], cost, None, 0)
        verified += len(nodes)
        selector.observe(nodes if rng.random() < 0.8 else [], 0.0, 1.4 if nodes else 1.0)
    print(f"\nstopped after {n_unlucky} drafts, then verified in {verified} of 400 steps")
    assert verified > 320


def test_residency_stops_drafting_that_does_not_pay_and_comes_back() -> None:
    cost = flat_cost([1.0, 1.01])

    def run(selector: _testing.SelectorUnderTest, n_steps: int, verify: float, accepted: bool) -> list[bool]:
        drafted = []
        for _ in range(n_steps):
            drafted.append(selector.wants_draft())
            if not drafted[-1]:
                selector.observe_plain(1.0)
                continue
            nodes = selector.select([-1], [0.9], cost, None, 0)
            selector.observe(nodes if accepted else [], 0.0, verify if nodes else 1.0)
        return drafted

    selector = Selector("residency")
    # Steps take three times what the prices say and bring two tokens: hopeless, which two steps tell.
    drafted = run(selector, 2 + 32 + 2 + 64 + 2 + 128, 3.0, True)
    assert drafted == [True] * 2 + [False] * 32 + [True] * 2 + [False] * 64 + [True] * 2 + [False] * 128
    # The next session begins with another try; what it rests then is twice as long as the last time.
    heir = Selector("residency")
    heir.restore(selector.state())
    assert run(heir, 2 + 256 + 2, 3.0, True) == [True] * 2 + [False] * 256 + [True] * 2
    # Fast again: never another rest, and after some gains the next one would be short.
    assert run(selector, 200, 1.1, True) == [True] * 200
    # Gains are credit for bad luck: 4 plain steps, and 1.5 more may be lost.
    assert run(selector, 6 + 32, 3.0, True) == [True] * 6 + [False] * 32
    # A little slower than plain: that adds up to more than 1.5 plain steps before the rest.
    assert run(Selector("residency"), 13 + 32, 2.125, True) == [True] * 13 + [False] * 32


def test_residency_tells_the_drafter_what_it_would_never_verify() -> None:
    """A row alone takes 0.2 plain steps beside its experts' rows, 2 layers of 1 expert at 0.05 each: below 0.3 no node
    can pay."""
    prices = np.zeros((2, 64, 3))
    prices[:, :, 1], prices[:, :, 2] = 0.1, 0.05
    cost = _testing.table_cost(prices, [0.8, 1.0], [1.0, 1.3])
    selector = Selector("residency")
    assert selector.least_score() == 0.0
    selector.select([-1], [0.9], cost, np.array([[[0], [0]], [[1], [1]]], np.int32), 64)
    assert selector.least_score() == approx(0.3, abs=1e-6)
    # A step without a tree, perhaps for that reason, lowers it.
    selector.observe_plain(1.0)
    assert selector.least_score() == approx(0.15, abs=1e-6)
    assert Selector("all").least_score() == 0.0


def test_a_drafter_that_finds_nothing_is_not_sent_to_rest() -> None:
    selector = Selector("residency")
    rng = np.random.default_rng(2)
    for _ in range(200):
        assert selector.wants_draft()
        selector.select([], [], flat_cost([1.0]), None, 0)
        selector.observe([], 1e-5, float(rng.uniform(0.8, 1.2)))


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.6, -1.0), (1.5, 0.7)])
def test_acceptance_fit_recovers_a_planted_map(slope: float, offset: float) -> None:
    fit = _testing.AcceptanceFit()
    assert fit.probability(0.3) == approx(0.3, abs=1e-6)
    rng = np.random.default_rng(3)
    for score in rng.uniform(0.02, 0.98, 6000):
        odds = slope * np.log(score / (1 - score)) + offset
        fit.observe(float(score), bool(rng.random() < 1 / (1 + np.exp(-odds))))
    print(f"\nplanted ({slope}, {offset}), learned ({fit.slope:.2f}, {fit.offset:.2f})")
    assert fit.slope == approx(slope, abs=0.2)
    assert fit.offset == approx(offset, abs=0.2)


def test_acceptance_fit_survives_one_sided_evidence() -> None:
    fit = _testing.AcceptanceFit()
    for _ in range(20000):
        fit.observe(1.0, True)
    for score in [0.001, 0.1, 0.5, 0.9, 1.0]:
        assert 0.0 < fit.probability(score) <= 1.0
    probabilities = [fit.probability(s) for s in [0.001, 0.1, 0.5, 0.9, 1.0]]
    assert probabilities == sorted(probabilities)


def test_a_restored_fit_keeps_its_depths_apart() -> None:
    fit, again = _testing.AcceptanceFit(), _testing.AcceptanceFit()
    rng = np.random.default_rng(7)
    for _ in range(400):
        fit.observe(0.5, bool(rng.random() < 0.8), 1)
        fit.observe(0.5, bool(rng.random() < 0.2), 2)
    again.restore(fit.state())
    before = again.probability(0.5, 2)
    assert before == approx(fit.probability(0.5, 2))
    again.observe(0.5, True, 1)
    assert again.probability(0.5, 2) == approx(before, abs=0.05)
    assert again.probability(0.5, 1) > 0.7


def test_acceptance_fit_is_not_carried_away() -> None:
    """A few unlucky or lucky nodes tell little of a drafter, a hundred much."""
    for accepted, few, many in ((False, (0.4, 0.56), (0.0, 0.1)), (True, (0.56, 0.7), (0.9, 1.0))):
        fit = _testing.AcceptanceFit()
        for _ in range(5):
            fit.observe(0.56, accepted)
        print(f"\nafter 5: {fit.probability(0.56):.2f}")
        assert few[0] < fit.probability(0.56) < few[1]
        for _ in range(95):
            fit.observe(0.56, accepted)
        print(f"after 100: {fit.probability(0.56):.2f}")
        assert many[0] < fit.probability(0.56) < many[1]
