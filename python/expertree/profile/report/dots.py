"""Points of a plot, not more than one can see."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MOST = 1200


def thinned(x: npt.ArrayLike, y: npt.ArrayLike) -> list[tuple[float, float]]:
    points = np.stack([np.asarray(x, float), np.asarray(y, float)], axis=1)
    ids = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST)).astype(int))
    return [(float(a), float(b)) for a, b in points[ids]]
