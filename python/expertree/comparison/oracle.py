"""True expert sets for a selector, from a recorded run of the same request."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from expertree.comparison.speculation_trace import RecordedSequence
from expertree.speculation import DraftTree, Predictor


class RecordedOracle(Predictor):
    """Says what the root and the nodes do use, while the session drafts what was recorded; else nothing.

    n_asked, n_known: how often it was asked, and knew.
    """

    def __init__(self, sequence: RecordedSequence, n_prompt: int) -> None:
        self._sequence = sequence
        self._n_prompt = n_prompt
        self._n_run = 0
        self.n_asked = 0
        self.n_known = 0

    def observe(self, tokens: npt.NDArray[np.int32], experts: npt.NDArray[np.int32]) -> None:
        self._n_run += len(tokens)

    def predict(self, root_token: int, tree: DraftTree) -> npt.NDArray[Any] | None:
        self.n_asked += 1
        position, recorded = self._n_run - self._n_prompt, self._sequence
        if not 0 <= position < recorded.n_positions:
            return None
        begin, end = (int(i) for i in recorded.node_begin[position : position + 2])
        is_recorded = np.array_equal(tree.tokens, recorded.tokens[begin:end]) and np.array_equal(
            tree.parents, recorded.parents[begin:end]
        )
        if not is_recorded:
            return None
        self.n_known += 1
        return recorded.routed[recorded.tree_rows(position)]
