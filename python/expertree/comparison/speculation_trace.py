"""A recorded run: at every position of a text the drafted tree, and what each of its nodes routes to.

From it any selector's steps can be worked out exactly, whatever it would have chosen, because it never comes to a
position that was not recorded. File: npz, schema "expertree.speculation_trace/1", documented in docs/speculation.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.errors import DeviceError, InvalidRequestError
from expertree.npz_file import reading_npz

SCHEMA = "expertree.speculation_trace/1"
_PER_RUN = {
    "text": (1, np.int32),
    "prompt": (3, np.int32),
    "node_begin": (1, np.int64),
    "tokens": (1, np.int32),
    "parents": (1, np.int32),
    "scores": (1, np.float32),
    "routed": (3, np.int32),
    "predicted": (3, np.int32),
    "draft_seconds": (1, np.float64),
}

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RecordedSequence:
    """One sequence with P positions and N nodes in all their trees.

    text: int32, the tokens after the prompt, more than P; position i's root is text[i]. prompt: int32 (prompt tokens,
    MoE layers, experts used), what they route to. node_begin: int64 (P + 1); the tree of position i are the nodes
    node_begin[i] to node_begin[i + 1]. tokens, parents (within the tree, -1: the root) int32 (N,), scores float32 (N,).
    routed: int32 (P + N, MoE layers, experts used), for each position the root's row and then its nodes'. predicted:
    the same shape; rows of -1 where nothing was known. draft_seconds: float64 (P,).
    """

    category: str
    id: str
    text: Ids
    prompt: Ids
    node_begin: npt.NDArray[np.int64]
    tokens: Ids
    parents: Ids
    scores: npt.NDArray[np.float32]
    routed: Ids
    predicted: Ids
    draft_seconds: npt.NDArray[np.float64]

    @property
    def n_positions(self) -> int:
        return len(self.node_begin) - 1

    def tree_rows(self, position: int) -> slice:
        """The rows of `routed` and `predicted`: the root, then the nodes."""
        begin, end = self.node_begin[position : position + 2]
        return slice(int(begin) + position, int(end) + position + 1)

    def to_core(self, n_experts: int, n_vocab: int) -> Any:
        """An `_core.RecordedRun`.

        Raises:
            InvalidRequestError: this is no recording.
        """
        return _core.RecordedRun(
            self.text,
            self.prompt,
            self.node_begin,
            self.tokens,
            self.parents,
            self.scores,
            self.routed,
            self.predicted,
            n_experts,
            n_vocab,
        )


@dataclass(frozen=True)
class TraceCosts:
    """What the recording machine took, in seconds; 0 or empty where nothing was measured.

    base_seconds: everything but experts with rows[i] rows. read_bytes_per_second: of experts from disk.
    """

    read_bytes_per_second: float = 0.0
    run_base_seconds: float = 0.0
    run_row_seconds: float = 0.0
    rows: list[int] = field(default_factory=list)
    base_seconds: list[float] = field(default_factory=list)

    @property
    def are_measured(self) -> bool:
        """Whether they tell what a pass takes whose experts are in memory."""
        return bool(self.rows) and self.run_base_seconds + self.run_row_seconds > 0


@dataclass(frozen=True, eq=False)
class SpeculationTrace:
    """Sequences of one model and one drafter.

    expert_bytes: of one expert, by MoE layer. other_bytes: all weights that every step reads besides experts.
    """

    model: str
    draft: str
    predict: str
    temperature: float
    seed: int
    n_experts: int
    n_used: int
    n_vocab: int
    expert_bytes: list[int]
    other_bytes: int
    costs: TraceCosts
    sequences: list[RecordedSequence]

    @property
    def n_layers(self) -> int:
        return len(self.expert_bytes)

    @property
    def all_expert_bytes(self) -> int:
        return sum(self.expert_bytes) * self.n_experts

    @property
    def draft_seconds(self) -> float:
        """Of a tree, median over all positions."""
        return float(np.median(np.concatenate([s.draft_seconds for s in self.sequences])))

    def save(self, path: Path) -> None:
        """Raises DeviceError when the disk does not take it."""
        facts = {name: value for name, value in vars(self).items() if name not in ("costs", "sequences")}
        head = {
            "schema": SCHEMA,
            **facts,
            "costs": vars(self.costs),
            "sequences": [{"category": s.category, "id": s.id} for s in self.sequences],
        }
        small = np.uint8 if self.n_experts < 255 else np.uint16
        arrays: dict[str, npt.NDArray[Any]] = {"head": np.array(json.dumps(head))}
        for i, sequence in enumerate(self.sequences):
            for name in _PER_RUN:
                values = getattr(sequence, name)
                # One more than the id: 0 is unknown.
                arrays[f"{name}.{i}"] = (values + 1).astype(small) if values.ndim == 3 else values
        try:
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise DeviceError(f"{path}: the trace cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> SpeculationTrace:
        """Raises InvalidRequestError when it is no such file."""
        remedy = "`expertree bench --speculate` and `expertree profile` record one"
        with reading_npz(path, f"recorded run of schema {SCHEMA}", remedy) as saved:
            head = json.loads(str(saved["head"]))
            if head.pop("schema", None) != SCHEMA:
                raise InvalidRequestError(f"{path}: not of schema {SCHEMA}; record it again")
            facts = head.pop("sequences")
            sequences = [_sequence(saved, i, fact) for i, fact in enumerate(facts)]
            return cls(costs=TraceCosts(**head.pop("costs")), sequences=sequences, **head)


def _sequence(saved: Mapping[str, npt.NDArray[Any]], i: int, fact: Mapping[str, str]) -> RecordedSequence:
    arrays: dict[str, Any] = {}
    for name, (n_dims, dtype) in _PER_RUN.items():
        values = saved[f"{name}.{i}"]
        if values.ndim != n_dims or values.dtype.kind not in "iuf":
            raise ValueError(f"{name}.{i} is {values.dtype} of {values.ndim} dimensions")
        shifted = values.astype(np.int32) - 1 if n_dims == 3 else values
        arrays[name] = np.ascontiguousarray(shifted, dtype)
    return RecordedSequence(fact["category"], fact["id"], **arrays)
