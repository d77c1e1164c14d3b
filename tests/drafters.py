"""Drafters and selectors for tests, written against the public plug points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from expertree import Drafter, DraftLimits, DraftTree, Selector

Drafted = tuple[list[int], list[int], list[float]]


def chain(tokens: Sequence[int], score: float = 0.9) -> Drafted:
    """One path; each token as likely as `score`."""
    return list(tokens), list(range(-1, len(tokens) - 1)), [score ** (i + 1) for i in range(len(tokens))]


class NothingDrafter(Drafter):
    def draft(self, history: Any, limits: DraftLimits) -> Drafted:
        return [], [], []


class WrongDrafter(Drafter):
    """Sure of itself and never right: it knows the truth and avoids it."""

    def __init__(self, truth: Sequence[int], n_vocab: int) -> None:
        self._truth, self._n_vocab = truth, n_vocab

    def draft(self, history: Any, limits: DraftLimits) -> Drafted:
        following = self._truth[len(history) : len(history) + limits.depth]
        return chain([(token + 1) % self._n_vocab for token in following], 1.0)


class WildDrafter(Drafter):
    """Random trees of any shape, with the truth woven in here and there; scores mean nothing."""

    def __init__(self, truth: Sequence[int], n_vocab: int, seed: int = 0) -> None:
        self._truth, self._n_vocab = truth, n_vocab
        self._random = np.random.default_rng(seed)

    def draft(self, history: Any, limits: DraftLimits) -> Drafted:
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        depths: list[int] = []
        for node in range(int(self._random.integers(0, limits.nodes + 1))):
            parent = int(self._random.integers(-1, node))
            depth = 1 if parent < 0 else depths[parent] + 1
            at = len(history) + depth - 1
            is_true = at < len(self._truth) and self._random.random() < 0.5
            token = self._truth[at] if is_true else int(self._random.integers(self._n_vocab))
            if depth > limits.depth or (token, parent) in zip(tokens, parents, strict=True):
                break
            tokens.append(token)
            parents.append(parent)
            depths.append(depth)
            scores.append((1.0 if parent < 0 else scores[parent]) * float(self._random.uniform(0.1, 1.0)))
        return tokens, parents, scores


class CallDrafter(Drafter):
    """Drafts what a function gives."""

    def __init__(self, function: Callable[[list[int], DraftLimits], Drafted]) -> None:
        self._function = function

    def draft(self, history: Any, limits: DraftLimits) -> Drafted:
        return self._function(history.tolist(), limits)


class AllSelector(Selector):
    def select(self, tree: DraftTree, cost: Any) -> Sequence[int]:
        return range(len(tree))


class RandomSelector(Selector):
    """Any set that is closed under parents, the empty one included; now and then it wants no draft."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def select(self, tree: DraftTree, cost: Any) -> Sequence[int]:
        chosen: list[int] = []
        share = self._random.random()
        for node, parent in enumerate(tree.parents):
            if (parent < 0 or parent in chosen) and self._random.random() < share:
                chosen.append(node)
        return chosen

    def wants_draft(self) -> bool:
        return bool(self._random.random() < 0.9)
