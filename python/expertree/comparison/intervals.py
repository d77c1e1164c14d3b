"""Medians and how sure they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

_RESAMPLES = 2000


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The median with its 95 % bootstrap interval (percentiles of the medians of 2,000 resamples)."""
    middle = statistics.median(values)
    if len(values) < 2:
        return middle, middle, middle
    draws = np.random.default_rng(seed).choice(np.asarray(values), (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return middle, float(low), float(high)
