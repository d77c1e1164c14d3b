"""The guard of `residency`: drafting rests when it does not pay, whatever single steps take. Times are simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from expertree._core import _testing
from pytest import approx


@dataclass
class Machine:
    """Steps of a model whose experts come from a disk of uneven speed.

    A plain token runs for 1 and misses `misses` experts on average; an expert comes in `per_miss` on average, in half
    or twice that now and then. A drafted step runs for `run` and gives `tokens` tokens on average; each kept row misses
    as a plain one does, and all others together `wasted` more. `between`: what a plain step between drafts takes; there
    are some unless it is 1. `drift`: per-miss times wander by this factor over some hundred steps.
    """

    run: float = 2.0
    tokens: float = 2.0
    misses: float = 10.0
    per_miss: float = 0.1
    wasted: float = 0.0
    draft: float = 0.1
    between: float = 1.0
    drift: float = 1.0
    overlap: float = 1.0  # of reads in a drafted step
    seed: int = 0

    def run_guard(self, n_tokens: int, guard: Callable[[], _testing.BackOff] = _testing.BackOff) -> Outcome:
        rng = np.random.default_rng(self.seed)
        back_off = guard()
        done, seconds, drafted, steps = 0, 0.0, 0, 0
        while done < n_tokens:
            steps += 1
            wander = self.drift ** np.sin(steps / 60)
            each = self.per_miss * wander * rng.lognormal(0.0, 0.7) / np.exp(0.245)
            expected = 1.0 + self.misses * self.per_miss
            if back_off.resting:
                misses = int(rng.poisson(self.misses))
                back_off.observe(False, False, 1, 0.0, 1.0 + misses * each, misses * each, misses, misses, expected)
                seconds += 1.0 + misses * each
                done += 1
                continue
            drafted += 1
            n = 1 + int(rng.binomial(4, (self.tokens - 1) / 4))
            if drafted % 5 == 0 and self.between != 1.0:
                misses = int(rng.poisson(self.misses))
                wait = misses * each
                back_off.observe(True, False, 1, self.draft, self.between + wait, wait, misses, misses, expected)
                seconds += self.draft + self.between + wait
                done += 1
                continue
            kept = int(rng.poisson(self.misses * n))
            misses = kept + int(rng.poisson(self.wasted))
            wait = misses * each * self.overlap
            back_off.observe(True, True, n, self.draft, self.run + wait, wait, misses, kept, expected)
            seconds += self.draft + self.run + wait
            done += n
        return Outcome(drafted / steps, done * (1.0 + self.misses * self.per_miss) / seconds)

    @property
    def utility(self) -> float:
        """Of always drafting."""
        plain = self.tokens * (1.0 + self.misses * self.per_miss)
        misses = self.tokens * self.misses + self.wasted
        return plain / (self.draft + self.run + misses * self.per_miss * self.overlap)


@dataclass
class Outcome:
    drafted: float  # share of steps
    ratio: float  # to plain decoding


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drift", [1.0, 2.0])
def test_uneven_reads_do_not_stop_a_drafter_that_pays(drift: float, seed: int) -> None:
    """It saves a tenth of the time, while single steps take half or twice as long."""
    machine = Machine(run=1.4, tokens=2.3, wasted=4.0, drift=drift, seed=seed)
    assert 1.05 < machine.utility < 1.15
    found = machine.run_guard(1500)
    assert found.drafted > 0.85
    assert found.ratio > 1.05 or drift > 1.0  # beside plain decoding at the mean speed of the disk


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("run", [2.3, 2.8, 4.0])
def test_a_drafter_that_does_not_pay_costs_little(run: float, seed: int) -> None:
    machine = Machine(run=run, tokens=1.8, wasted=6.0, seed=seed)
    assert machine.utility < 0.95
    found = [Machine(run=run, tokens=1.8, wasted=6.0, seed=10 * seed + i).run_guard(1500).ratio for i in range(5)]
    assert np.mean(found) > 0.97


def test_reads_that_overlap_are_priced_as_they_are() -> None:
    """Many misses at once take less each: more experts than plain decoding needs, and less time."""
    machine = Machine(run=1.8, tokens=2.0, wasted=8.0, overlap=0.6)
    assert machine.utility > 1.05
    assert machine.run_guard(1500).drafted > 0.85


def test_plain_steps_of_a_rest_count_apart() -> None:
    """Between drafts a plain step takes twice as long, for drafts disturb the cache: no excuse for drafting."""
    machine = Machine(run=2.6, tokens=2.0, misses=0.0, per_miss=0.0, between=2.0)
    assert machine.utility < 0.8
    found = machine.run_guard(2000)
    assert found.drafted < 0.25


def test_losses_by_hand() -> None:
    """Plain: 1 and 10 misses. A draft that keeps two tokens, whose rows miss 12, in 1.5 and 20 misses at 0.1."""
    guard = _testing.BackOff()
    assert guard.loss(True, 2, 0.1, 3.5, expected_plain=3.0) == approx(3.6 / 3.0 - 2)  # nothing else is known
    assert guard.loss(True, 2, 0.1, 3.5, expected_plain=0.0) == 0.0
    for _ in range(300):  # in a slow hour of the disk
        guard.observe(False, False, 1, 0.0, 9.0, 8.0, 10.0, 10.0, 3.0)
    for _ in range(60):  # and in a faster one
        guard.observe(False, False, 1, 0.0, 9.0, 8.0, 10.0, 10.0, 3.0)
        for _ in range(4):
            guard.observe(True, True, 2, 0.1, 3.5, 2.0, 20.0, 12.0, 3.0)
    # A miss takes more in plain iterations, by the factor that was seen where they met: 0.8 over 0.1, but 2 at most.
    plain = 0.1 * np.exp(0.7)
    expected = (0.1 + 1.5 + 20 * 0.1 - 2 * 1.0 - 12 * plain) / (1.0 + 10 * plain)
    assert guard.loss(True, 2, 0.1, 3.5, 2.0, 20.0, 12.0) == approx(expected, rel=1e-4)
    # What a step itself waited is no matter.
    assert guard.loss(True, 2, 0.1, 9.5, 8.0, 20.0, 12.0) == approx(expected, rel=1e-4)
    # A draft of which nothing was verified lost its own time.
    lost = guard.loss(False, 1, 0.3, 1.0 + 10 * plain, 10 * plain, 10.0, 10.0)
    assert lost == approx(0.3 / (1.0 + 10 * plain), rel=1e-4)


def test_what_a_miss_takes_more_in_plain_iterations_is_learned() -> None:
    guard = _testing.BackOff()
    for _ in range(80):
        for _ in range(3):
            guard.observe(True, False, 1, 0.0, 1.0 + 10 * 0.13, 10 * 0.13, 10.0, 10.0)
        guard.observe(True, True, 3, 0.0, 1.0 + 20 * 0.1, 20 * 0.1, 20.0, 20.0)
    # Nothing but the price differs: 20 misses at 0.13 instead of 0.1.
    assert guard.loss(True, 1, 0.0, 1.0 + 2.0, 2.0, 20.0, 20.0) == approx(-20 * 0.03 / (1 + 10 * 0.13), rel=0.01)


def test_one_step_does_not_stop_it() -> None:
    """Whatever the machine was doing meanwhile."""
    guard = _testing.BackOff()
    guard.observe(True, True, 2, 0.1, 500.0)
    assert not guard.resting
    guard.observe(True, True, 1, 0.1, 2.0)
    assert guard.resting


def test_the_next_session_knows_what_plain_decoding_takes() -> None:
    guard = _testing.BackOff()
    guard.observe(True, True, 1, 0.1, 9.0)
    guard.observe(True, True, 1, 0.1, 9.0)
    for _ in range(20):
        if guard.resting:
            guard.observe(False, False, 1, 0.0, 1.0, 0.5, 5.0, 5.0)
        else:
            guard.observe(True, True, 1, 0.1, 3.0, 1.0, 10.0, 5.0)
    heir = _testing.BackOff()
    heir.restore(guard.state())
    outcome = (True, 2, 0.1, 2.0, 0.7, 7.0, 5.0)
    assert heir.loss(*outcome, expected_plain=99.0) == approx(guard.loss(*outcome, expected_plain=99.0))
    for broken in ([], [1.0], [0.0] * 9):
        other = _testing.BackOff()
        other.restore(broken)
        assert other.loss(True, 1, 0.0, 2.0) == 1.0


def test_a_rest_goes_on_in_the_next_session() -> None:
    """Short texts would lose to a new attempt each; for long rests the next one may be about something else."""

    def left(guard: _testing.BackOff) -> int:
        n = 0
        while guard.resting:
            guard.observe(False, False, 1, 0.0, 1.0)
            n += 1
        return n

    for n_rests, n_seen, expected in ((1, 0, 32), (1, 20, 12), (2, 0, 64), (4, 100, 128), (4, 200, 56)):
        guard = _testing.BackOff()
        for _ in range(n_rests):
            left(guard)
            while not guard.resting:
                guard.observe(True, True, 1, 0.1, 9.0)
        for _ in range(n_seen):
            guard.observe(False, False, 1, 0.0, 1.0)
        heir = _testing.BackOff()
        heir.restore(guard.state())
        assert left(heir) == expected


# ---- acceptance by depth


def test_each_depth_has_a_map_of_its_own() -> None:
    """Scores are right at depth 1 and promise too much at depth 3."""
    fit = _testing.AcceptanceFit()
    rng = np.random.default_rng(1)
    for _ in range(4000):
        for depth, shift in ((1, 0.0), (3, -1.5)):
            score = float(rng.uniform(0.1, 0.9))
            odds = np.log(score / (1 - score)) + shift
            fit.observe(score, bool(rng.random() < 1 / (1 + np.exp(-odds))), depth)
    assert fit.probability(0.5, 1) == approx(0.5, abs=0.06)
    assert fit.probability(0.5, 3) == approx(1 / (1 + np.exp(1.5)), abs=0.06)
    # Depths that were not seen have the map of all.
    assert fit.probability(0.5, 3) < fit.probability(0.5, 2) < fit.probability(0.5, 1)
    # The least score is that of the depth with the most hope.
    least = fit.least_score(0.3)
    assert max(fit.probability(least, depth) for depth in range(1, 12)) == approx(0.3, abs=1e-4)


def test_a_depth_needs_evidence_to_be_different() -> None:
    fit = _testing.AcceptanceFit()
    before = fit.probability(0.6, 2)
    fit.observe(0.6, False, 2)
    assert before - 0.2 < fit.probability(0.6, 2) < before
    for _ in range(5000):
        fit.observe(0.9, True, 4)
    probabilities = [fit.probability(s, 4) for s in (0.001, 0.1, 0.5, 0.9, 1.0)]
    assert probabilities == sorted(probabilities) and probabilities[-1] <= 1.0
    assert all(0.0 < fit.probability(0.5, depth) < 1.0 for depth in range(1, 20))
