"""The least number of misses that any replacement can have: by trying everything. For tiny cases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations


def least_misses(requests: Sequence[frozenset[int]], n_slots: int) -> int:
    """Requests are sets that must be in memory together; each fits."""

    @cache
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(requests):
            return 0
        wanted = requests[at]
        missing = wanted - held
        others = sorted(held - wanted)
        n_keep = min(len(others), n_slots - len(wanted))
        kept = [frozenset(c) for c in combinations(others, n_keep)] if missing else [frozenset(others)]
        return len(missing) + min(best(at + 1, wanted | k) for k in kept)

    return best(0, frozenset())
