"""What memory for experts buys: a profile's own routing, replayed through the cache and its policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree import _core
from expertree.profile.reuse import routing_trace
from expertree.profile.tables import Bools, Doubles, Ints

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

SHARES = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Budget:
    """share: of all experts in memory; bytes: that they take there. The rest is of decoding: hit_rate of the uses,
    bytes_per_token from disk, and what a token takes; None where the run says nothing of the disk."""

    share: float
    bytes: int
    hit_rate: float
    bytes_per_token: float
    tokens_per_second: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class BudgetModel:
    """Replays the decoding of one profile with other budgets and policies.

    What a step takes besides waiting stays as measured. In a layer the experts in memory, and what runs beside them,
    hide some of the reading: waiting is what is left of it. How long a read takes then follows from the waiting that
    was measured, so errors of the replay at the run's own budget cancel.

    Args:
        compute: what computing takes, as a share of what it took in the run.
    """

    def __init__(self, profile: Profile, compute: float = 1.0) -> None:
        self._profile = profile
        self._trace, self._step_of_pass = routing_trace(profile)
        decodes = profile.steps.decoding()
        self._counts = decodes[self._step_of_pass]
        self._uses = _uses_by_pass(self._trace)
        self.tokens = int(profile.steps.tokens[decodes].sum())
        self.wall = float(profile.steps.wall[decodes].sum())
        self.wait = float(profile.steps.seconds("wait")[decodes].sum())
        self._compute = compute
        self._beside, self._run = _seconds_by_layer(profile, int(self._counts.sum()))
        budget = profile.facts["budget"]
        self._misses = self._simulate(budget["slots"], budget["policy"])
        self._read_seconds = self._fit_read()

    @property
    def seconds_per_token(self) -> float:
        return self.wall / max(1, self.tokens)

    def at_share(self, share: float, policy: str | None = None) -> Budget:
        """With room for a share of all experts (or of each class at least one)."""
        facts = self._profile.facts["budget"]
        experts = [0] * len(facts["slots"])
        for size_class in facts["class_of_layer"]:
            experts[size_class] += self._profile.facts["model"]["n_experts"]
        slots = [min(n, max(1, int(share * n + 0.5))) for n in experts]
        sizes = [0] * len(slots)
        for size_class, size in zip(facts["class_of_layer"], self._profile.facts["model"]["slot_bytes"], strict=True):
            sizes[size_class] = size
        taken = sum(n * size for n, size in zip(slots, sizes, strict=True))
        return self._budget(sum(slots) / sum(experts), taken, self._simulate(slots, policy or facts["policy"]))

    def at_policy(self, policy: str) -> Budget:
        """With the run's own slots."""
        facts = self._profile.facts["budget"]
        share = facts["bytes"] / max(1, facts["all_bytes"])
        return self._budget(share, facts["bytes"], self._simulate(facts["slots"], policy))

    def waiting(self, misses: Ints, compute: float, read_seconds: Doubles) -> float:
        """Seconds of all decoding passes. misses: (passes, layers). read_seconds: (layers,) of one expert."""
        hidden = compute * (self._beside + self._run * (1.0 - misses / np.maximum(1, self._uses[self._counts])))
        return float(np.maximum(0.0, misses * read_seconds - hidden).sum())

    def _budget(self, share: float, size: int, misses: Ints) -> Budget:
        sizes = np.array(self._profile.facts["model"]["expert_bytes"], np.float64)
        uses = int(self._uses[self._counts].sum())
        speed = None
        if self._read_seconds is not None:
            computing = (self.wall - self.wait) * self._compute
            waiting = self.waiting(misses, self._compute, self._read_seconds)
            speed = self.tokens / max(1e-9, computing + waiting)
        return Budget(
            share=share,
            bytes=size,
            hit_rate=1.0 - float(misses.sum()) / max(1, uses),
            bytes_per_token=float((misses * sizes).sum()) / max(1, self.tokens),
            tokens_per_second=speed,
        )

    def _simulate(self, slots: Sequence[int], policy: str) -> Ints:
        """Misses of the decoding passes (passes, layers), in a cache that begins as full as the run's did."""
        classes = self._profile.facts["budget"]["class_of_layer"]
        begin, experts = self._trace.arrays()
        first = [np.flatnonzero(row).astype(np.int32) for row in self._initial(slots)]
        ends = np.cumsum([0, *(ids.size for ids in first)])
        n_layers, n_experts = self._trace.n_layers, self._trace.n_experts
        trace = _core.RoutingTrace.of_steps(
            np.concatenate([ends[:-1], begin + ends[-1]]).astype(np.int64),
            np.concatenate([*first, experts]).astype(np.int32),
            n_layers,
            n_experts,
        )
        known = [] if policy != "pinned" else (self._profile.experts.uses / max(1, len(begin))).ravel().tolist()
        result = _core.simulate_cache(trace, classes, list(slots), policy, known, 1)
        misses: Ints = np.array(result["misses"], np.int32).reshape(-1, n_layers)[self._counts]
        return misses

    def _initial(self, slots: Sequence[int]) -> Bools:
        """What is in memory at the beginning: as in the run, with more of it where there is more room."""
        facts = self._profile.facts["budget"]
        initial: Bools = self._profile.experts.initial.copy()
        classes = np.array(facts["class_of_layer"])
        for size_class, (n, n_before) in enumerate(zip(slots, facts["slots"], strict=True)):
            layers = np.flatnonzero(classes == size_class)
            held = initial[layers].ravel()
            if n > n_before and held.sum() >= n_before:  # it was full: the background would have filled this, too
                held[np.flatnonzero(~held)[: n - int(held.sum())]] = True
            elif held.sum() > n:
                kept = np.flatnonzero(held)
                held[:] = False
                held[kept[np.linspace(0, len(kept) - 1, n).astype(int)]] = True
            initial[layers] = held.reshape(len(layers), -1)
        return initial

    def _fit_read(self) -> Doubles | None:
        """Seconds that a missing expert takes, (layers,), so that the run's own waiting comes out."""
        costs = self._profile.facts["costs"]
        sizes = np.array(self._profile.facts["model"]["expert_bytes"], np.float64)
        if not self._misses.any() or self.wait <= 0.0:
            speed = costs.get("read_bytes_per_second", 0.0)
            return sizes / speed if speed > 0.0 else np.zeros_like(sizes) if not self._misses.any() else None
        low, high = 0.0, 1.0
        per_byte = 1.0 / float(sizes.mean())
        while self.waiting(self._misses, 1.0, sizes * per_byte * high) < self.wait and high < 1e4:
            high *= 2.0
        for _ in range(50):
            middle = 0.5 * (low + high)
            if self.waiting(self._misses, 1.0, sizes * per_byte * middle) < self.wait:
                low = middle
            else:
                high = middle
        return sizes * per_byte * high


def _uses_by_pass(trace: Any) -> Ints:
    begin, _ = trace.arrays()
    uses: Ints = np.diff(begin).astype(np.int32).reshape(-1, trace.n_layers)
    return uses


def _seconds_by_layer(profile: Profile, n_passes: int) -> tuple[Doubles, Doubles]:
    """Of a decoding pass, by MoE layer: what runs while experts are read, and running the experts themselves."""
    from expertree.profile.tables import KINDS, ZONES

    kinds = [KINDS.index("decode"), KINDS.index("speculate")]
    layers = profile.facts["model"]["moe_layers"]
    seconds = profile.layers.zone_seconds[layers][:, kinds].sum(axis=1) / max(1, n_passes)
    beside: Doubles = seconds[:, ZONES.index("dense")] + seconds[:, ZONES.index("predict")]
    run: Doubles = seconds[:, ZONES.index("experts")]
    return beside, run
