"""What share of uses finds its expert in memory, foretold from a short record of earlier runs.

The experts that a short run used most owe that in part to chance, so no use is judged by a count that it is part of.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Counts of merged records are no whole numbers; they tie when they are that close.
_TIE = 1e-3


def hit_rate_by_frequency(rates: npt.NDArray[np.float32], steps: float, n_slots: int) -> float | None:
    """The share of uses that would go to the n_slots experts that are used most, told from all other steps' counts.

    Each step is left out in turn: of its experts, how many are among the n_slots that the others use most? (M. Stone,
    "Cross-validatory choice and assessment of statistical predictions", JRSS B 36, 1974.) Where use is even that gives
    the share that has room; with thousands of steps, what the counts say.

    Args:
        rates: uses per row of text of the experts that share the slots, any shape.
        steps: how many rows that is counted from.

    Returns:
        None: nothing was counted.
    """
    chance = np.clip(rates.astype(np.float64).ravel(), 0.0, 1.0)  # that a step uses the expert
    counts = chance * steps
    if counts.sum() <= 0:
        return None
    order = np.sort(counts)
    chance_from = np.append(np.cumsum(np.sort(chance)[::-1])[::-1], 0.0)  # summed from each place of `order` up

    def rank(least: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Of the other experts, how many are expected to have `least` or more without the step: it may use them."""
        stays, falls = np.searchsorted(order, least), np.searchsorted(order, least + 1)
        n_all = (len(order) - stays) - chance_from[stays] + chance_from[falls]
        itself = np.where(counts >= least, 1.0 - chance, 0.0) + np.where(counts >= least + 1, chance, 0.0)
        others: npt.NDArray[np.float64] = n_all - itself
        return others

    without = counts - 1
    ahead, level = rank(without + _TIE), rank(without - _TIE)
    found = np.clip((n_slots - ahead) / (level - ahead + 1), 0.0, 1.0)
    return float((counts * found).sum() / counts.sum())


def hit_rate_by_recency(reuse: npt.NDArray[np.float32], share: float) -> float | None:
    """The share of uses whose expert is among those used last, when a share of each layer's experts has room.

    Args:
        reuse: shares of uses by how many others of the layer were used since, (n_layers, n_experts).

    Returns:
        None: nothing was counted.
    """
    sums = reuse.sum(axis=1)
    if not (sums > 0).any():
        return None
    known = reuse[sums > 0] / sums[sums > 0, None]
    found = np.append(0.0, np.cumsum(known.mean(axis=0, dtype=np.float64)))
    return float(np.interp(share * reuse.shape[1], np.arange(len(found)), found))
