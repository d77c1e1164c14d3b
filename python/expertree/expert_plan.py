"""How much of a model's experts a budget keeps in memory, and what that means for speed. Loads nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from expertree import _core
from expertree.expert_hits import hit_rate_by_frequency, hit_rate_by_recency
from expertree.expert_record import Costs, ExpertRecord

MERGED_EXPERTS = re.compile(r"^blk\.(\d{1,6})\.ffn_(gate_up|gate|up|down)_exps\.(weight|bias|scale)$")
ONE_EXPERT = re.compile(r"^blk\.(\d{1,6})\.ffn_(gate|up|down)\.(\d{1,6})\.(weight|bias|scale)$")
# As in cpp/experts/slot_layout.cpp.
_LEAST_ALIGNMENT, _OVERREAD_BYTES = 64, 128
_PROJECTIONS = ("gate", "up", "down")


class ExpertTensor(Protocol):
    """As `expertree._core.GgufTensor`."""

    name: str
    shape: tuple[int, ...]
    size_bytes: int
    offset: int


@dataclass(frozen=True)
class LayerSlots:
    """The experts of one layer."""

    n_experts: int
    slot_bytes: int  # memory of one
    file_bytes: int  # of the file, one


@dataclass(frozen=True)
class Residency:
    """What one budget means. hit_rate and the numbers after it are expectations for one token after another."""

    ram_bytes: int  # that slots take of the budget
    resident_share: float  # of all experts
    hit_rate: float  # from how experts were used in earlier runs; without a record: as if all alike
    read_bytes_per_token: float
    tokens_per_second: float | None  # None: nothing was measured here yet


def layer_slots(tensors: Sequence[ExpertTensor], alignment: int) -> list[LayerSlots]:
    """Layers with experts, in order; [] when a layer lacks a projection or has one of a form that is not run.

    Args:
        alignment: of direct reads from the file, 1 without them.
    """
    found: dict[int, dict[str, dict[int, tuple[int, int]]]] = {}  # layer, projection, expert: offset, bytes
    for tensor in tensors:
        merged, one = MERGED_EXPERTS.match(tensor.name), ONE_EXPERT.match(tensor.name)
        match = merged or one
        if match is None or match[match.lastindex or 0] != "weight":
            continue
        experts = found.setdefault(int(match[1]), {}).setdefault(match[2], {})
        if one is not None:
            experts[int(one[3])] = (tensor.offset, tensor.size_bytes)
            continue
        n = max(1, tensor.shape[-1])
        size = tensor.size_bytes // n
        experts.update({e: (tensor.offset + e * size, size) for e in range(n)})
    layers = [_one_layer(projections, alignment) for _, projections in sorted(found.items())]
    return [layer for layer in layers if layer is not None] if None not in layers else []


def _one_layer(projections: dict[str, dict[int, tuple[int, int]]], alignment: int) -> LayerSlots | None:
    if set(projections) != set(_PROJECTIONS) or len({len(experts) for experts in projections.values()}) != 1:
        return None
    block = max(_LEAST_ALIGNMENT, alignment)
    slot = file = 0
    for name in _PROJECTIONS:
        places = projections[name].values()
        largest = max(offset % alignment + size + _OVERREAD_BYTES for offset, size in places)
        slot += -(-largest // block) * block
        file += max(size for _, size in places)
    return LayerSlots(len(projections["gate"]), slot, file)


@dataclass(frozen=True)
class SizeClasses:
    """Layers whose experts take equally many bytes share slots."""

    slot_bytes: list[int]
    n_experts: list[int]
    class_of_layer: list[int]

    @classmethod
    def of(cls, layers: Sequence[LayerSlots]) -> SizeClasses:
        slot_bytes: list[int] = []
        for layer in layers:
            if layer.slot_bytes not in slot_bytes:
                slot_bytes.append(layer.slot_bytes)
        class_of_layer = [slot_bytes.index(layer.slot_bytes) for layer in layers]
        n_experts = [0] * len(slot_bytes)
        for layer, c in zip(layers, class_of_layer, strict=True):
            n_experts[c] += layer.n_experts
        return cls(slot_bytes, n_experts, class_of_layer)

    def slots(self, budget_bytes: int) -> list[int]:
        """Slots of each class. Raises OutOfMemoryError when not even one of each fits."""
        return [int(n) for n in _core.plan_slots(self.slot_bytes, self.n_experts, budget_bytes)["slots"]]


def predict(
    layers: Sequence[LayerSlots],
    budget_bytes: int,
    n_used: int,
    record: ExpertRecord | None,
) -> Residency:
    """What a budget means for decoding one token after another.

    Reading overlaps with running the experts that are in memory, not with the rest of a step: seconds per token are
    step - run + max(run, read). See docs/bench.md for how that compares with measurements.

    Args:
        record: of earlier runs; what it says of use is left aside when it is not one of as many layers and experts.

    Raises:
        OutOfMemoryError: the budget is too small.
    """
    classes = SizeClasses.of(layers)
    slots = classes.slots(budget_bytes)
    costs = record.costs if record is not None else Costs()
    hit_by_class = [_hit_rate(layers, classes, c, n, record) for c, n in enumerate(slots)]
    hits = [hit_by_class[c] for c in classes.class_of_layer]
    read_bytes = sum(n_used * (1 - hit) * layer.file_bytes for hit, layer in zip(hits, layers, strict=True))
    speed = None
    if costs.step_seconds > 0 and (costs.read_bytes_per_second > 0 or read_bytes == 0):
        run = len(layers) * n_used * (costs.run_base_seconds + costs.run_row_seconds)
        read = read_bytes / costs.read_bytes_per_second if read_bytes else 0.0
        speed = 1.0 / (max(0.0, costs.step_seconds - run) + max(run, read))
    return Residency(
        ram_bytes=sum(n * size for n, size in zip(slots, classes.slot_bytes, strict=True)),
        resident_share=sum(slots) / sum(classes.n_experts),
        hit_rate=sum(hits) / len(hits),
        read_bytes_per_token=read_bytes,
        tokens_per_second=speed,
    )


def _hit_rate(
    layers: Sequence[LayerSlots], classes: SizeClasses, size_class: int, n_slots: int, record: ExpertRecord | None
) -> float:
    """The share of the class's uses that n_slots hold: the policy keeps what is used often or what was used last,
    whichever does better."""
    share = n_slots / classes.n_experts[size_class]
    if record is None or record.rates.shape != (len(layers), max(layer.n_experts for layer in layers)) or share >= 1:
        return share
    of_class = [i for i, c in enumerate(classes.class_of_layer) if c == size_class]
    rates = np.concatenate([record.rates[i, : layers[i].n_experts] for i in of_class])
    by_frequency = hit_rate_by_frequency(rates, record.n_rows, n_slots)
    by_recency = None if record.reuse is None else hit_rate_by_recency(record.reuse[of_class], share)
    return max((rate for rate in (by_frequency, by_recency) if rate is not None), default=share)
