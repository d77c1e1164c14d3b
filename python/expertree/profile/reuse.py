"""What a profile's routing says about memory: reuse distances, unions of rows, and its replay through the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree import _core
from expertree.profile.tables import Ints, Longs

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_CHUNK_ROWS = 512  # rows of one pass through the layers (cpp/model/forward.cpp)


def passes(profile: Profile) -> Iterator[tuple[int, list[Ints]]]:
    """Of each pass in order: its step, and by MoE layer the experts that it used, each once, rising."""
    routing = profile.routing
    bounds = np.flatnonzero(np.diff(routing.step, prepend=-1, append=-1))
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        for first in range(begin, end, _CHUNK_ROWS):
            rows = routing.experts[first : min(end, first + _CHUNK_ROWS)]
            used = [np.unique(rows[:, layer]).astype(np.int32) for layer in range(rows.shape[1])]
            yield int(routing.step[begin]), [ids[ids >= 0] for ids in used]


def routing_trace(profile: Profile) -> tuple[Any, Longs]:
    """An `_core.RoutingTrace` of all passes, and (passes,) the step of each."""
    begin, experts, steps = [0], [], []
    for step, layers in passes(profile):
        steps.append(step)
        for ids in layers:
            experts.append(ids)
            begin.append(begin[-1] + ids.size)
    flat = np.concatenate(experts) if experts else np.zeros(0, np.int32)
    n_layers, n_experts = profile.experts.uses.shape
    trace = _core.RoutingTrace.of_steps(np.array(begin, np.int64), flat, n_layers, n_experts)
    return trace, np.array(steps, np.int64)


def reuse_distances(profile: Profile) -> Longs:
    """For every use of an expert, how many other experts of its layer were used since its last use; -1: a first use."""
    n_layers = profile.experts.uses.shape[0]
    recent: list[list[int]] = [[] for _ in range(n_layers)]  # the latest last
    distances: list[int] = []
    for _, layers in passes(profile):
        for order, ids in zip(recent, layers, strict=True):
            for expert in ids.tolist():
                if expert in order:
                    at = order.index(expert)
                    distances.append(len(order) - 1 - at)
                    del order[at]
                else:
                    distances.append(-1)
                order.append(expert)
    return np.array(distances, np.int64)


def union_curve(profile: Profile, rows: Sequence[int]) -> list[float]:
    """U(k) for each k of `rows`: the mean number of experts of a layer that the first k rows of a step need, over the
    steps that ran so many; nan where none did. Prompts do not count."""
    routing = profile.routing
    decodes = profile.steps.of_kind("decode", "speculate", "evaluate")
    bounds = np.flatnonzero(np.diff(routing.step, prepend=-1, append=-1))
    sums, counts = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if not decodes[routing.step[begin]]:
            continue
        for i, k in enumerate(rows):
            if k <= end - begin:
                ids = routing.experts[begin : begin + k]
                sums[i] += np.mean([np.unique(ids[:, layer]).size for layer in range(ids.shape[1])])
                counts[i] += 1
    return [float(s / n) if n else float("nan") for s, n in zip(sums, counts, strict=True)]
