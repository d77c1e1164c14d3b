"""Machines for replays: bandwidths and budgets, and what a trace's model takes there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from expertree import _core
from expertree.comparison.speculation_trace import SpeculationTrace
from expertree.errors import InvalidRequestError
from expertree.expert_plan import LayerSlots, SizeClasses
from expertree.memory_size import parse_size

# GB/s that a copy of a few MB reaches of the lanes' 15.8, 31.5 and 63.
LINKS = {"pcie3": 12.0, "pcie4": 24.0, "pcie5": 48.0}
DEFAULT_POLICY = "layer-lfu"
_MOST_ROWS = 64


@dataclass(frozen=True)
class Machine:
    """Where experts run, and how the others get there. Budgets are sizes ("8GiB"), shares of all experts ("50%"), or
    "all"; speeds are GB/s.

    budget: of experts where they run: memory of a GPU, or RAM on a machine without one.
    run: speed of that memory; what is read from it bounds every pass.
    link: speed from the tier behind: PCIe, or the disk when experts run in RAM.
    behind: budget of the tier behind; the rest lies on disk.
    disk: speed of the disk, of use when `behind` is not "all".
    layer_us: what a layer takes besides reading, microseconds. row_us: what one more row adds to a pass.
    expert_row_us: what one more row adds to one expert.
    """

    name: str
    budget: str = "all"
    run: float = 400.0
    link: float = 24.0
    behind: str = "all"
    disk: float = 3.0
    layer_us: float = 30.0
    row_us: float = 10.0
    expert_row_us: float = 0.5
    policy: str = DEFAULT_POLICY

    def to_core(self, trace: SpeculationTrace, draft_seconds: float) -> Any:
        """An `_core.ReplayMachine` for the trace's model.

        Raises:
            InvalidRequestError: a budget that is no size, or a speed that is not above 0.
            OutOfMemoryError: a budget too small for one token's experts.
        """
        for name in ("run", "link", "disk"):
            speed = getattr(self, name)
            if not (math.isfinite(speed) and speed > 0):
                raise InvalidRequestError(f"machine {self.name}: {name} is {speed}; expected GB/s above 0")
        core = _memory(trace, self.budget, self.behind, self.policy)
        mean_bytes = trace.all_expert_bytes / (trace.n_layers * trace.n_experts)
        core.fetch_seconds = [size / (self.link * 1e9) for size in trace.expert_bytes]
        core.disk_seconds = [size * (1 / self.link + 1 / self.disk) * 1e-9 for size in trace.expert_bytes]
        core.run_base_seconds = mean_bytes / (self.run * 1e9)
        core.run_row_seconds = self.expert_row_us * 1e-6
        fixed = trace.other_bytes / (self.run * 1e9) + trace.n_layers * self.layer_us * 1e-6
        core.base_seconds = [fixed + n * self.row_us * 1e-6 for n in range(1, _MOST_ROWS + 1)]
        core.draft_seconds = draft_seconds
        return core


@dataclass(frozen=True)
class RecordingMachine:
    """The machine that recorded the trace, as it measured itself, with another budget."""

    name: str
    budget: str = "all"
    policy: str = DEFAULT_POLICY

    def to_core(self, trace: SpeculationTrace, draft_seconds: float) -> Any:
        """As `Machine.to_core`; InvalidRequestError when the trace lacks what it needs."""
        costs = trace.costs
        if not costs.are_measured:
            raise InvalidRequestError("the trace holds no measured costs; name a machine, or record it again")
        core = _memory(trace, self.budget, "all", self.policy)
        speed = costs.read_bytes_per_second
        if not speed and sum(core.n_slots) < trace.n_layers * trace.n_experts:
            raise InvalidRequestError(
                "the trace was recorded with all experts in memory, so how fast the disk is was not measured; record "
                "it with a smaller --ram, or name a machine"
            )
        seconds = [size / speed if speed else 0.0 for size in trace.expert_bytes]
        core.fetch_seconds, core.disk_seconds = seconds, seconds
        core.run_base_seconds, core.run_row_seconds = costs.run_base_seconds, costs.run_row_seconds
        core.base_seconds = _between(costs.rows, costs.base_seconds)
        core.draft_seconds = draft_seconds
        return core


AnyMachine = Machine | RecordingMachine


def gpu_machines(budgets: Sequence[str], links: Sequence[str] = tuple(LINKS)) -> list[Machine]:
    """A GPU with each of the budgets behind each of the links, experts beside it in RAM."""
    return [Machine(f"{budget} {link}", budget, link=LINKS[link]) for budget in budgets for link in links]


def parse_machine(text: str) -> AnyMachine:
    """A machine from `NAME[,KEY=VALUE]...`: NAME is here, pcie3, pcie4, pcie5, or free; keys as in `Machine`.

    >>> parse_machine("pcie4,budget=8GiB,run=600")

    Raises:
        InvalidRequestError: an unknown key, or a value that is no number.
    """
    name, *options = text.split(",")
    values = dict(option.partition("=")[::2] for option in options)
    if name == "here":
        unknown = set(values) - {"budget", "policy"}
        if unknown:
            raise InvalidRequestError(
                f"machine {text!r}: 'here' is as it was measured; it takes budget and policy only"
            )
        return RecordingMachine(text, **values)
    machine = Machine(text, link=LINKS.get(name, Machine.link))
    for key, value in values.items():
        kind = type(getattr(machine, key, None)) if key != "name" else type(None)
        try:
            number = float(value) if kind is float else value
        except ValueError:
            number = None
        if kind not in (float, str) or number is None:
            known = ", ".join(k for k in vars(machine) if k != "name")
            raise InvalidRequestError(f"machine {text!r}: {key}={value!r} makes no sense; keys are: {known}")
        machine = replace(machine, **{key: number})  # type: ignore[arg-type]
    return machine


def budget_bytes(budget: str, all_bytes: int) -> int | None:
    """Bytes of "8GiB", or of "50%" of all experts; None for "all".

    Raises:
        InvalidRequestError: none of these.
    """
    if budget == "all":
        return None
    try:
        size = int(float(budget[:-1]) / 100 * all_bytes) if budget.endswith("%") else parse_size(budget)
    except (ValueError, OverflowError):
        size = None
    if size is None or size < 0:
        raise InvalidRequestError(f"{budget!r} is no budget; give for example 50%, 8GiB or all")
    return size


def _memory(trace: SpeculationTrace, budget: str, behind: str, policy: str) -> Any:
    """A machine with its tiers and no times yet. Slots hold experts without the padding that the pager may need."""
    core = _core.ReplayMachine()
    layers = [LayerSlots(trace.n_experts, size, size) for size in trace.expert_bytes]
    classes = SizeClasses.of(layers)
    everything = list(classes.n_experts)
    size = budget_bytes(budget, trace.all_expert_bytes)
    core.class_of_layer = classes.class_of_layer
    core.n_slots = everything if size is None else classes.slots(size)
    size = budget_bytes(behind, trace.all_expert_bytes)
    if size is not None:
        core.n_behind = classes.slots(size)
    core.expert_bytes = [float(size) for size in trace.expert_bytes]
    core.policy = policy
    return core


def _between(rows: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Of 1, 2, .. rows, straight lines between those measured."""
    values: list[float] = []
    for n in range(1, rows[-1] + 1):
        above = next(i for i, count in enumerate(rows) if count >= n)
        if rows[above] == n or above == 0:
            values.append(seconds[above])
            continue
        share = (n - rows[above - 1]) / (rows[above] - rows[above - 1])
        values.append(seconds[above - 1] + share * (seconds[above] - seconds[above - 1]))
    return values
