"""A profile's columns, schema "expertree.profile/1" (docs/profile.md). Times are seconds since the profile began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from expertree.errors import InvalidRequestError

SCHEMA = "expertree.profile/1"

# Where a step's time goes; the last one is time outside the core, before the step. Exclusive: no moment counts twice.
ZONES = (
    "draft",
    "predict",
    "select",
    "attention",
    "router",
    "experts",
    "dense",
    "head",
    "other",
    "wait",
    "sample",
    "commit",
    "python",
)
KINDS = ("prefill", "decode", "speculate", "evaluate")
PURPOSES = ("weights", "experts", "kv", "other")  # of memory
READ_REASONS = ("demand", "hint", "background")

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.int16]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

T = TypeVar("T", bound="Table")

_CASTS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}  # kinds of dtype that a column takes


@dataclass(frozen=True, eq=False)
class Table:
    """Arrays with the same first axis: the fields of a dataclass, annotated with the names of their axes."""

    def __len__(self) -> int:
        return len(getattr(self, self.columns()[0]))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self, name) for name in self.columns()}

    @classmethod
    def columns(cls) -> list[str]:
        return [f.name for f in fields(cls)]

    @classmethod
    def of(cls: type[T], arrays: Mapping[str, Any], sizes: dict[str, int], where: str) -> T:
        """Checked: dtypes, and axes of one name equally long, `sizes` (extended here) included.

        Raises:
            InvalidRequestError: an array that is missing or has another form.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            array, axes = get_args(hint)
            dtype = get_args(get_args(array)[1])[0]
            if name not in arrays:
                raise InvalidRequestError(f"{where}: {name} is missing; the profile is of another version or damaged")
            values = np.asarray(arrays[name])
            names = axes.split()
            if values.ndim != len(names) or values.dtype.kind not in _CASTS[np.dtype(dtype).kind]:
                raise InvalidRequestError(
                    f"{where}.{name} is {values.dtype} of shape {values.shape}; expected {np.dtype(dtype)} ({axes})"
                )
            for axis, length in zip(names, values.shape, strict=True):
                if sizes.setdefault(axis, length) != length:
                    raise InvalidRequestError(f"{where}.{name} has {length} {axis}; expected {sizes[axis]}")
            found[name] = np.ascontiguousarray(values, dtype)
        return cls(**found)


@dataclass(frozen=True, eq=False)
class Steps(Table):
    """S steps: calls of prefill, step and evaluate, in the order in which they ended."""

    kind: Annotated[Bytes, "steps"]  # index into KINDS
    session: Annotated[Ints, "steps"]  # index into facts["sessions"]
    start: Annotated[Doubles, "steps"]
    wall: Annotated[Doubles, "steps"]  # seconds that the call took
    zone_seconds: Annotated[Doubles, "steps zones"]  # all zones but "python" add up to wall
    position: Annotated[Ints, "steps"]  # tokens in the session before
    rows: Annotated[Ints, "steps"]  # run through the model
    tokens: Annotated[Ints, "steps"]  # that the session gained
    last_token: Annotated[Ints, "steps"]  # of them, which the next step begins with; -1: none
    drafted: Annotated[Ints, "steps"]  # nodes of the tree
    verified: Annotated[Ints, "steps"]  # of them run
    accepted: Annotated[Ints, "steps"]  # of them kept
    drafted_by_depth: Annotated[Ints, "steps depths"]  # D is 0 where nothing was drafted; column 0 is depth 1
    verified_by_depth: Annotated[Ints, "steps depths"]
    accepted_by_depth: Annotated[Ints, "steps depths"]
    predicted: Annotated[Doubles, "steps"]  # seconds of verifying, foretold; 0: nobody asked
    measured: Annotated[Doubles, "steps"]  # seconds of that: the pass, sampling and keeping the path
    experts_touched: Annotated[Ints, "steps"]  # hit + late + missed, over all layers; each once per pass
    experts_hit: Annotated[Ints, "steps"]  # in memory when asked for
    experts_late: Annotated[Ints, "steps"]  # being read then
    experts_missed: Annotated[Ints, "steps"]  # not even that
    prefetched: Annotated[Ints, "steps"]  # reads begun on a guess
    prefetch_used: Annotated[Ints, "steps"]  # of such reads: in memory when first needed
    prefetch_late: Annotated[Ints, "steps"]  # still being read then
    prefetch_wasted: Annotated[Ints, "steps"]  # given up unused
    bytes_memory: Annotated[Longs, "steps"]  # of weights and KV cache that the rows must read from memory at least
    bytes_experts: Annotated[Longs, "steps"]  # of experts that arrived from files, whatever for
    bytes_disk: Annotated[Longs, "steps"]  # read past the page cache for them, over-read included
    bytes_overread: Annotated[Longs, "steps"]  # of bytes_disk: what whole blocks held beside the experts
    memory_bytes: Annotated[Longs, "steps purposes"]  # at the end, by PURPOSES

    def of_kind(self, *kinds: str) -> Bools:
        """(S,) which steps are of one of these kinds."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])

    def decoding(self) -> Bools:
        """(S,) which steps ran the model to give the next tokens. The first token after a prompt comes from the
        prompt's own pass."""
        ran: Bools = self.of_kind("decode", "speculate") & (self.rows > 0)
        return ran

    def seconds(self, zone: str) -> Doubles:
        """(S,) of one zone."""
        column: Doubles = self.zone_seconds[:, ZONES.index(zone)]
        return column


@dataclass(frozen=True, eq=False)
class Layers(Table):
    """Sums by layer of the model, dense ones included."""

    zone_seconds: Annotated[Doubles, "layers kinds zones"]  # by kind of step; what belongs to no layer is not here


@dataclass(frozen=True, eq=False)
class Experts(Table):
    """Sums by MoE layer and expert. A use is one pass of a layer that needs the expert, whatever the rows."""

    uses: Annotated[Longs, "moe_layers experts"]
    rows: Annotated[Longs, "moe_layers experts"]  # that were routed to it
    hits: Annotated[Longs, "moe_layers experts"]  # of the uses: in memory when asked for
    late: Annotated[Longs, "moe_layers experts"]  # being read then
    misses: Annotated[Longs, "moe_layers experts"]  # not even that
    initial: Annotated[Bools, "moe_layers experts"]  # in memory when the profile began
    resident: Annotated[Floats, "moe_layers experts"]  # share of the steps' ends at which it was in memory


@dataclass(frozen=True, eq=False)
class Nodes(Table):
    """N drafted tokens, the trees of all steps one after the other. Parents come before their children."""

    step: Annotated[Ints, "nodes"]
    token: Annotated[Ints, "nodes"]
    parent: Annotated[Ints, "nodes"]  # within the tree, -1: the root, which is the sequence's last token and no node
    depth: Annotated[Ints, "nodes"]  # 1: a child of the root
    score: Annotated[Floats, "nodes"]  # the drafter's probability that all of the path down to it is accepted
    verified: Annotated[Bools, "nodes"]
    accepted: Annotated[Bools, "nodes"]


@dataclass(frozen=True, eq=False)
class Routing(Table):
    """R rows that ran through the model, in order, and the experts that they used. U: experts used per token."""

    step: Annotated[Ints, "rows"]
    token: Annotated[Ints, "rows"]
    node: Annotated[Ints, "rows"]  # within the step's tree; -1: the root, or a token of a prompt
    experts: Annotated[Shorts, "rows moe_layers used"]  # best first; -1 where the layer was not run for the row
    predicted: Annotated[Shorts, "rows moe_layers used"]  # what the predictor said of the row; -1: nothing


@dataclass(frozen=True, eq=False)
class Events(Table):
    """V pieces of the sessions' time lines. Within a thread they do not overlap; steps too many to keep have none."""

    step: Annotated[Ints, "events"]
    zone: Annotated[Bytes, "events"]  # index into ZONES, never "python"
    thread: Annotated[Shorts, "events"]  # that called the session, counted from 0
    layer: Annotated[Shorts, "events"]  # -1: no layer's
    begin: Annotated[Doubles, "events"]
    end: Annotated[Doubles, "events"]


@dataclass(frozen=True, eq=False)
class Reads(Table):
    """Q experts read from files in the background, in order of their end. Reads overlap each other and the events."""

    layer: Annotated[Shorts, "reads"]  # MoE layer
    expert: Annotated[Shorts, "reads"]
    reason: Annotated[Bytes, "reads"]  # index into READ_REASONS
    lane: Annotated[Shorts, "reads"]  # reads of one lane do not overlap
    failed: Annotated[Bools, "reads"]
    bytes: Annotated[Longs, "reads"]  # of the expert
    begin: Annotated[Doubles, "reads"]
    end: Annotated[Doubles, "reads"]


def read_lanes(begin: Sequence[float] | Doubles, end: Sequence[float] | Doubles) -> Shorts:
    """The lowest lane that is free for each read, so that those of one lane do not overlap."""
    lanes = np.zeros(len(begin), np.int16)
    free_at: list[float] = []
    for i in np.argsort(np.asarray(begin), kind="stable"):
        lane = next((n for n, t in enumerate(free_at) if t <= begin[i]), len(free_at))
        if lane == len(free_at):
            free_at.append(0.0)
        free_at[lane] = float(end[i])
        lanes[i] = lane
    return lanes
