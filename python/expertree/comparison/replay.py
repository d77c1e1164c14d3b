"""What selectors would make of a recorded run on another machine, in seconds of computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from expertree import _core
from expertree.comparison.machine import AnyMachine
from expertree.comparison.settings import PLAIN, Setting
from expertree.comparison.speculation_trace import SpeculationTrace
from expertree.errors import InvalidRequestError

SCHEMA = "expertree.replay/1"


@dataclass(frozen=True)
class Replayed:
    """One setting on one machine. Times are the machine's; select_ms is what choosing takes on this one, and no part of
    tokens_per_second. unique_experts: per layer and step. The counts from rows to from_disk, and milliseconds, are per
    step; megabytes are per token."""

    machine: str
    setting: str
    family: str
    steps: int
    tokens: int
    tokens_per_second: float
    ratio: float  # to plain decoding on the same machine
    accepted: float
    rows: float
    unique_experts: float
    hits: float
    fetched: float
    from_disk: float
    mb_fetched: float
    mb_from_disk: float
    draft_ms: float
    select_ms: float
    verify_ms: float
    predicted_ms: float | None

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


class Replayer:
    """Replays the sequences of a trace.

    Args:
        category: only its sequences; None takes all.

    Raises:
        InvalidRequestError: a damaged trace, or no such category.
    """

    def __init__(self, trace: SpeculationTrace, category: str | None = None) -> None:
        chosen = [s for s in trace.sequences if category in (None, s.category)]
        if not chosen:
            known = ", ".join(sorted({s.category for s in trace.sequences}))
            raise InvalidRequestError(f"the trace holds no sequences of {category!r}; it has: {known}")
        self.trace = trace
        self._runs = [sequence.to_core(trace.n_experts, trace.n_vocab) for sequence in chosen]

    def steps(
        self, setting: Setting, machine: AnyMachine, *, draft_seconds: float | None = None, calibrate: bool = True
    ) -> dict[str, Any]:
        """Columns of all steps: tokens, drafted, rows, accepted, experts, fetched, from_disk (int64), plain_misses,
        bytes_fetched, bytes_from_disk, verify_seconds, wait_seconds, predicted_seconds, draft_seconds, select_seconds
        (float64).

        Args:
            draft_seconds: of a tree; None takes what the trace measured.
            calibrate: what passes of several rows take is known to the selector from the start.

        Raises:
            InvalidRequestError: a machine or a selector that makes no sense, or one that is not lossless.
        """
        drafting = self.trace.draft_seconds if draft_seconds is None else draft_seconds
        core = machine.to_core(self.trace, drafting)
        columns: dict[str, Any] = _core.replay(self._runs, core, setting.select or "", setting.is_oracle, calibrate)
        return columns

    def summaries(
        self, settings: Sequence[Setting], machine: AnyMachine, *, draft_seconds: float | None = None
    ) -> list[Replayed]:
        """Of plain decoding and of the settings, in order. Those that are not lossless are left out: what other experts
        would have said was not recorded. Raises what `steps` raises."""
        plain = self.steps(PLAIN, machine, draft_seconds=draft_seconds)
        speed = _tokens_per_second(plain)
        rows = [self._summary(PLAIN, machine, plain, speed)]
        for setting in settings:
            if setting.select is not None and setting.is_lossless:
                rows.append(
                    self._summary(setting, machine, self.steps(setting, machine, draft_seconds=draft_seconds), speed)
                )
        return rows

    def _summary(self, setting: Setting, machine: AnyMachine, columns: dict[str, Any], plain: float) -> Replayed:
        n = len(columns["tokens"])
        tokens = int(columns["tokens"].sum())
        speed = _tokens_per_second(columns)
        foreseen = columns["predicted_seconds"][columns["predicted_seconds"] > 0]

        def mean(name: str) -> float:
            return float(columns[name].mean())

        return Replayed(
            machine=machine.name,
            setting=setting.name,
            family=setting.family,
            steps=n,
            tokens=tokens,
            tokens_per_second=speed,
            ratio=speed / plain,
            accepted=mean("accepted"),
            rows=mean("rows"),
            unique_experts=mean("experts") / self.trace.n_layers,
            hits=mean("experts") - mean("fetched"),
            fetched=mean("fetched"),
            from_disk=mean("from_disk"),
            mb_fetched=float(columns["bytes_fetched"].sum()) / tokens * 1e-6,
            mb_from_disk=float(columns["bytes_from_disk"].sum()) / tokens * 1e-6,
            draft_ms=mean("draft_seconds") * 1e3,
            select_ms=mean("select_seconds") * 1e3,
            verify_ms=mean("verify_seconds") * 1e3,
            predicted_ms=float(foreseen.mean()) * 1e3 if foreseen.size else None,
        )


def _tokens_per_second(columns: dict[str, Any]) -> float:
    return float(np.sum(columns["tokens"]) / (np.sum(columns["verify_seconds"]) + np.sum(columns["draft_seconds"])))
