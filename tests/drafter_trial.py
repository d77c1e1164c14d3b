"""A drafter of the core outside a session, with a target that feeds it."""

from __future__ import annotations

from typing import Any

import expertree
import numpy as np
from expertree import _core
from expertree._core import _testing

TREE = (32, 4, 8)  # nodes, depth, top_k


def sampler(**fields: Any) -> Any:
    options = _core.SamplerOptions()
    for name, value in fields.items():
        setattr(options, name, value)
    return options


class Trial:
    """A drafter with a target that feeds it."""

    def __init__(self, model: expertree.Model, spec: str, n_ctx: int = 512) -> None:
        self.core = model._core
        self.drafter = _testing.DrafterUnderTest(self.core, spec, n_ctx)
        self.n = 0

    def features(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """taps (rows, taps * n_embd), last hidden (rows, n_embd)"""
        parents = list(range(-1, len(tokens) - 1))
        layers = self.drafter.tap_layers
        taps, last, _ = _testing.hidden_states(self.core, tokens, parents, layers, True)
        return taps.reshape(len(tokens), -1), last

    def observe(self, tokens: list[int], pieces: list[int] | None = None) -> None:
        """All of `tokens`, of which the first self.n have been observed; pieces: sizes of the calls."""
        taps, last = self.features(tokens)
        for size in pieces or [len(tokens) - self.n]:
            part = slice(self.n, self.n + size)
            self.drafter.observe(
                tokens[part], self.n, np.ascontiguousarray(taps[part]), np.ascontiguousarray(last[part])
            )
            self.n += size

    def truncate(self, length: int) -> None:
        self.drafter.truncate(length)
        self.n = min(self.n, length)

    def draft(self, history: list[int], limits: tuple[int, int, int] = TREE, **options: Any) -> tuple[Any, ...]:
        return self.drafter.draft(history, limits, sampler(**options))
