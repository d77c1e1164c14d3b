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
        rows = self._rows(tree, position)
        if rows is None:
            return None
        self.n_known += 1
        return recorded.routed[recorded.tree_rows(position)][rows]

    def _rows(self, tree: DraftTree, position: int) -> list[int] | None:
        """The recorded rows of the root and of each node; None when a node was not recorded. A selector may have told
        the drafter to leave nodes out, so that the recorded tree is the larger one."""
        begin, end = (int(i) for i in self._sequence.node_begin[position : position + 2])
        tokens, parents = self._sequence.tokens[begin:end].tolist(), self._sequence.parents[begin:end].tolist()
        row_of = {
            (parent + 1, token): node + 1 for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))
        }
        rows = [0]
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            row = row_of.get((rows[parent + 1], token))
            if row is None:
                return None
            rows.append(row)
        return rows
