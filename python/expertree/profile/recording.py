"""A profile while it runs: `Model.profile()`, and how its columns become a `Profile`."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.errors import InvalidRequestError
from expertree.profile.profile import Profile
from expertree.profile.tables import ZONES, read_lanes

if TYPE_CHECKING:
    from expertree.model import Model

DEFAULT_EVENTS = 2_000_000  # about 50 MB
Columns = dict[str, npt.NDArray[Any]]


class Profiling:
    """What `with model.profile() as run:` gives. `run.profile` is there when the block has ended."""

    def __init__(self, model: Model, max_events: int) -> None:
        if not isinstance(max_events, int) or not 0 <= max_events < 2**31:
            raise InvalidRequestError(f"max_events is {max_events!r}; expected a whole number from 0 to 2^31 - 1")
        self._model = model
        self._max_events = max_events
        self._core: Any = None
        self._profile: Profile | None = None

    def __enter__(self) -> Profiling:
        pager = self._model._core.experts
        initial = np.zeros((0, 0), np.uint8) if pager is None else pager.states
        self._initial = initial == 2  # in memory
        self._read_bytes = _process_read_bytes()
        self._core = _core.start_profile(self._model._core, self._max_events)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        columns = _core.take_profile(self._model._core, self._core)
        after = _process_read_bytes()
        read = None if self._read_bytes is None or after is None else after - self._read_bytes
        self._profile = make_profile(self._model, columns, self._initial, read)

    @property
    def profile(self) -> Profile:
        """Raises InvalidRequestError while the block runs."""
        if self._profile is None:
            raise InvalidRequestError("the profile is still running; read it after the `with` block")
        return self._profile


def make_profile(model: Model, columns: Any, initial: npt.NDArray[np.bool_], read_bytes: int | None) -> Profile:
    """A `Profile` from what the core recorded. initial: experts that were in memory when it began."""
    steps: Columns = dict(columns["steps"])
    n_nodes, n_rows = steps.pop("n_nodes"), steps["rows"]
    steps.pop("thread")
    n_passes = steps.pop("passes")
    ids, first, steps["session"] = np.unique(steps["session"], return_index=True, return_inverse=True)
    order = np.argsort(first)  # sessions in order of their first step
    steps["session"] = np.argsort(order)[steps["session"]].astype(np.int32)
    nodes = {"step": np.repeat(np.arange(len(n_nodes), dtype=np.int32), n_nodes), **columns["nodes"]}
    for name in ("verified", "accepted"):
        nodes[name] = nodes[name].astype(bool)
    routing = {"step": np.repeat(np.arange(len(n_rows), dtype=np.int32), n_rows), **columns["routing"]}
    n_steps = len(n_nodes)
    for name, counts in _by_depth(nodes, n_steps).items():
        steps[name] = counts.sum(axis=1, dtype=np.int32)
        steps[f"{name}_by_depth"] = counts
    steps["experts_touched"] = steps["experts_hit"] + steps["experts_late"] + steps["experts_missed"]
    facts = _facts(model, [model._session_facts(int(i)) for i in ids[order]])
    steps["bytes_memory"] = _bytes_memory(model, facts, steps, n_passes)
    facts["totals"] = {
        "wall_seconds": float(columns["wall_seconds"]),
        "events_dropped": int(columns["events_dropped"]),
        "process_read_bytes": read_bytes,
    }
    reads = _reads(dict(columns["reads"]), max(1, model.n_experts))
    busy = _busy_seconds(reads["begin"], reads["end"])
    facts["machine"]["disk_gb_per_s"] = float(reads["bytes"].sum() / busy / 1e9) if busy > 0 else None
    python = np.zeros((*columns["layers"].shape[:2], len(ZONES) - columns["layers"].shape[2]))
    return Profile.of(
        facts,
        {
            "steps": steps,
            "layers": {"zone_seconds": np.concatenate([columns["layers"], python], axis=2)},
            "experts": _experts(dict(columns["experts"]), routing["experts"], initial, n_steps),
            "nodes": nodes,
            "routing": routing,
            "events": columns["events"],
            "reads": reads,
        },
    )


def _by_depth(nodes: Columns, n_steps: int) -> dict[str, npt.NDArray[np.int32]]:
    """Nodes drafted, verified and accepted, each (steps, depths)."""
    shape = (n_steps, int(nodes["depth"].max(initial=0)))
    counts = {}
    for name, chosen in (("drafted", None), ("verified", nodes["verified"]), ("accepted", nodes["accepted"])):
        table = np.zeros(shape, np.int32)
        among = slice(None) if chosen is None else chosen
        np.add.at(table, (nodes["step"][among], nodes["depth"][among] - 1), 1)
        counts[name] = table
    return counts


def _experts(counts: Columns, routed: npt.NDArray[np.int16], initial: npt.NDArray[np.bool_], n_steps: int) -> Columns:
    n_layers, n_experts = counts["hits"].shape
    rows = np.zeros((n_layers, n_experts), np.int64)
    for layer in range(n_layers):
        ids = routed[:, layer].ravel()
        rows[layer] = np.bincount(ids[ids >= 0], minlength=n_experts)
    resident = counts["resident"] / max(1, n_steps)
    uses = counts["hits"] + counts["late"] + counts["misses"]
    return {**counts, "uses": uses, "rows": rows, "resident": resident, "initial": initial.reshape(uses.shape)}


def _reads(reads: Columns, n_experts: int) -> Columns:
    key = reads.pop("key")
    reads["layer"], reads["expert"] = key // n_experts, key % n_experts
    reads["failed"] = reads["failed"].astype(bool)
    reads["lane"] = read_lanes(reads["begin"], reads["end"])
    return reads


def _busy_seconds(begin: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> float:
    """Length of the union of the intervals."""
    if not len(begin):
        return 0.0
    order = np.argsort(begin)
    latest = np.maximum.accumulate(end[order])
    gaps = np.maximum(0.0, begin[order][1:] - latest[:-1])
    return float(latest[-1] - begin[order][0] - gaps.sum())


def _bytes_memory(
    model: Model, facts: dict[str, Any], steps: Columns, n_passes: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    sizes = facts["model"]["expert_bytes"]
    expert = sum(sizes) / max(1, len(sizes))
    kv = model._core.kv_bytes(2) - model._core.kv_bytes(1)
    per_pass = facts["model"]["other_bytes"] + kv * steps["position"].astype(np.float64)
    touched: npt.NDArray[np.int64] = (n_passes * per_pass + steps["experts_touched"] * expert).astype(np.int64)
    return touched


def _facts(model: Model, sessions: list[dict[str, Any]]) -> dict[str, Any]:
    from expertree.bench import Work

    pager = model._core.experts
    work = Work(model)
    stats = model.experts
    return {
        "model": {
            "path": str(model.path),
            "name": Path(model.path).stem,
            "arch": model.arch,
            "n_layers": model.n_layers,
            "n_moe_layers": 0 if pager is None else pager.n_layers,
            "n_experts": 0 if pager is None else model.n_experts,
            "n_experts_used": 0 if pager is None else model.n_experts_used,
            "n_vocab": model.n_vocab,
            "moe_layers": list(model._core.moe_layers),
            "expert_bytes": [] if pager is None else [int(size) for size in pager.file_bytes],
            "slot_bytes": [] if pager is None else [int(pager.slot_bytes[c]) for c in pager.class_of_layer],
            "other_bytes": int(work.bytes_read(None, 0)),
            "n_multiply_adds": int(work.operations(1, 1) / 2),
        },
        "machine": {
            "isa": model.isa,
            "threads": model.threads,
            "cores": os.cpu_count() or 1,
            "read_gb_per_s": None,
            "int8_gops": None,
            "disk_gb_per_s": None,
        },
        "options": {},
        "budget": {
            "bytes": int(stats.get("budget_bytes", 0)),
            "all_bytes": int(stats.get("all_bytes", 0)),
            "slots": [] if pager is None else [int(n) for n in pager.slots],
            "class_of_layer": [] if pager is None else list(pager.class_of_layer),
            "policy": stats.get("policy", ""),
        },
        "costs": {} if pager is None else dict(pager.costs),
        "sessions": sessions,
    }


def _process_read_bytes() -> int | None:
    """Bytes that the process had the disk read so far; None where the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
