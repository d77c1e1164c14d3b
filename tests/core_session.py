"""A session on a core model, and the logits that it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from expertree import _core


class CoreSession:
    def __init__(self, model: Any, n_ctx: int) -> None:
        self.model = model
        self.session = _core.Session(model, n_ctx, _core.SamplerOptions())

    def evaluate(self, tokens: Any, parents: Any = None) -> np.ndarray:
        """Logits (n, n_vocab) of pending rows: a chain, or a tree with these parents."""
        ids = np.asarray(tokens, np.int32)
        chain = np.arange(-1, len(ids) - 1, dtype=np.int32)
        logits: np.ndarray = self.session.evaluate(ids, chain if parents is None else np.asarray(parents, np.int32))[0]
        return logits

    def logits(self, tokens: Any, chunk: int) -> np.ndarray:
        """Logits of every token, `chunk` of them a pass; all are kept."""
        rows = []
        for begin in range(0, len(tokens), chunk):
            piece = tokens[begin : begin + chunk]
            rows.append(self.evaluate(piece))
            self.session.commit(np.arange(len(piece), dtype=np.int32))
        return np.concatenate(rows)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())
