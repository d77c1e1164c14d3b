"""Random draft trees with predicted experts and prices, and the price of a step in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from expertree._core import _testing


@dataclass
class PricedTree:
    parents: list[int]
    scores: list[float]
    sets: npt.NDArray[np.int32]  # [1 + nodes][layers][experts per row]
    prices: npt.NDArray[np.float64]  # [layers][experts][read, run_first, run_row], seconds
    base: list[float]  # of 1, 2, .. rows, seconds
    iteration: list[float]
    draft: float

    @property
    def n_experts(self) -> int:
        return int(self.prices.shape[1])

    def cost(self) -> _testing.StepCost:
        return _testing.table_cost(self.prices, self.base, self.iteration, self.draft)

    def choose(self, selector: _testing.SelectorUnderTest, *, with_sets: bool = True) -> list[int]:
        sets = self.sets if with_sets else None
        return list(selector.select(self.parents, self.scores, self.cost(), sets, self.n_experts))

    def step_seconds(self, nodes: Sequence[int]) -> float:
        """Base, and per layer the larger of reading and running, over the union of experts."""
        seconds = self.base[len(nodes)]
        for layer in range(self.sets.shape[1]):
            rows = Counter(int(e) for row in [0, *(v + 1 for v in nodes)] for e in self.sets[row, layer])
            read = sum(self.prices[layer, e, 0] for e in rows)
            run = sum(self.prices[layer, e, 1] + (n - 1) * self.prices[layer, e, 2] for e, n in rows.items())
            seconds += max(read, run)
        return seconds

    def rate(self, nodes: Sequence[int]) -> float:
        """Expected tokens per second, the scores taken for acceptance."""
        return (1 + sum(self.scores[v] for v in nodes)) / (self.step_seconds(nodes) + self.draft)


def random_tree(rng: np.random.Generator, n_nodes: int, max_depth: int = 5) -> tuple[list[int], list[float]]:
    """Parents before children, scores that fall along every path."""
    parents: list[int] = []
    scores: list[float] = []
    depths: list[int] = []
    close = rng.random() < 0.5
    for v in range(n_nodes):
        open_nodes = [-1, *(u for u in range(v) if depths[u] < max_depth)]
        parent = int(rng.choice(open_nodes))
        above = 1.0 if parent < 0 else scores[parent]
        # Half of the trees have siblings so close that prices decide and not the order of scores alone.
        q = float(rng.uniform(0.3, 0.99)) if close else float(rng.beta(0.9, 0.7)) * 0.99 + 0.005
        parents.append(parent)
        depths.append(1 if parent < 0 else depths[parent] + 1)
        scores.append(float(np.float32(above * q)))
    return parents, scores


def random_sets(
    rng: np.random.Generator, parents: list[int], n_layers: int, n_experts: int, n_used: int, alike: float
) -> npt.NDArray[np.int32]:
    """Rows take their experts from a few topics, so that distant nodes share some; `alike`: how often a child keeps
    its parent's topic, and a row takes its topic's expert and not any."""
    n_topics = 4
    topics = np.array([[rng.permutation(n_experts)[:n_used] for _ in range(n_layers)] for _ in range(n_topics)])
    topic_of = [int(rng.integers(n_topics))]
    sets = np.empty((1 + len(parents), n_layers, n_used), np.int32)
    for row in range(len(parents) + 1):
        if row > 0:
            topic_of.append(topic_of[parents[row - 1] + 1] if rng.random() < alike else int(rng.integers(n_topics)))
        for layer in range(n_layers):
            kept = [int(e) for e in topics[topic_of[row], layer] if rng.random() < alike]
            others = [int(e) for e in rng.permutation(n_experts) if e not in kept]
            sets[row, layer] = [*kept, *others][:n_used]
    return sets


def random_priced_tree(
    rng: np.random.Generator, n_nodes: int, n_layers: int = 4, n_experts: int = 16, n_used: int = 3
) -> PricedTree:
    """Random residency: a share of the experts is on disk, reading one takes 2 to 40 times as long as running it."""
    parents, scores = random_tree(rng, n_nodes)
    sets = random_sets(rng, parents, n_layers, n_experts, n_used, alike=float(rng.uniform(0.0, 1.0)))
    run = 1e-4
    prices = np.zeros((n_layers, n_experts, 3))
    missing = rng.random((n_layers, n_experts)) < rng.uniform(0.0, 1.0)
    prices[..., 0] = missing * run * rng.uniform(2.0, 40.0)
    prices[..., 1] = run
    prices[..., 2] = run * rng.uniform(0.0, 0.4)
    per_row = n_layers * n_used * run
    base = [per_row * float(rng.choice([0.5, 2.0, 8.0, 24.0]))]
    step = per_row * rng.uniform(0.0, 0.2)
    for _ in range(n_nodes):
        base.append(base[-1] + step)
    tree = PricedTree(parents, scores, sets, prices, base, [], float(rng.uniform(0.0, 0.5)) * per_row)
    by_score = sorted(range(n_nodes), key=lambda v: (-scores[v], v))
    tree.iteration = [tree.step_seconds(by_score[:k]) for k in range(n_nodes + 1)]
    return tree
