"""A finished profile: its tables, and what is made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree.errors import DeviceError, InvalidRequestError
from expertree.npz_file import reading_npz
from expertree.profile import budgets, reuse
from expertree.profile.summary import summary
from expertree.profile.tables import (
    KINDS,
    PURPOSES,
    READ_REASONS,
    SCHEMA,
    ZONES,
    Events,
    Experts,
    Layers,
    Longs,
    Nodes,
    Reads,
    Routing,
    Steps,
    Table,
)
from expertree.profile.timeline import trace_events

if TYPE_CHECKING:
    from expertree.comparison.speculation_trace import SpeculationTrace
    from expertree.model import Model

_TABLES: dict[str, type[Table]] = {
    "steps": Steps,
    "layers": Layers,
    "experts": Experts,
    "nodes": Nodes,
    "routing": Routing,
    "events": Events,
    "reads": Reads,
}
_FACTS = ("model", "machine", "options", "budget", "costs", "sessions", "totals")


@dataclass(frozen=True, eq=False)
class Profile:
    """What `Model.profile()` gives when its block has ended. docs/profile.md describes facts and tables.

    facts: what holds for all of it, as JSON values: model, machine, options, budget, costs, sessions, totals; and
    "advice" once `advise` has been called.
    """

    facts: dict[str, Any]
    steps: Steps
    layers: Layers
    experts: Experts
    nodes: Nodes
    routing: Routing
    events: Events
    reads: Reads

    @classmethod
    def of(cls, facts: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]], where: str = "profile") -> Profile:
        """From facts and arrays by table and name, checked.

        Raises:
            InvalidRequestError: something is missing or does not fit the rest.
        """
        missing = [name for name in _FACTS if name not in facts] + [name for name in _TABLES if name not in tables]
        if missing:
            raise InvalidRequestError(f"{where}: {missing[0]} is missing; expected schema {SCHEMA}")
        sizes = {"zones": len(ZONES), "kinds": len(KINDS), "purposes": len(PURPOSES)}
        made: dict[str, Any] = {}
        for name, kind in _TABLES.items():
            made[name] = kind.of(tables[name], sizes, f"{where}: {name}")
        for name, table, limit in (
            ("steps.kind", made["steps"].kind, len(KINDS)),
            ("steps.session", made["steps"].session, len(facts["sessions"])),
            ("events.zone", made["events"].zone, len(ZONES)),
            ("reads.reason", made["reads"].reason, len(READ_REASONS)),
            ("nodes.step", made["nodes"].step, sizes["steps"]),
            ("routing.step", made["routing"].step, sizes["steps"]),
            ("events.step", made["events"].step, sizes["steps"]),
        ):
            if table.size and (table.min() < 0 or table.max() >= limit):
                raise InvalidRequestError(f"{where}: {name} holds {table.max()}; expected 0 to {limit - 1}")
        return cls(dict(facts), **made)

    def tables(self) -> dict[str, Table]:
        return {name: getattr(self, name) for name in _TABLES}

    # What its routing says.

    def reuse_distances(self) -> Longs:
        """For every use of an expert, how many other experts of its layer were used since its last use; -1 for a first
        use. LRU keeps what returns within fewer than its slots of the layer."""
        return reuse.reuse_distances(self)

    def union_curve(self, rows: Sequence[int]) -> list[float]:
        """U(k) for each k of `rows`: mean experts of a layer that the first k rows of a step need; nan where no
        step ran so many."""
        return reuse.union_curve(self, rows)

    def budget_curve(self, shares: Sequence[float] | None = None) -> list[budgets.Budget]:
        """What keeping a share of the experts in memory would make of the run's decoding; [] without experts."""
        if not self.facts["model"]["n_moe_layers"] or not self.steps.decoding().any():
            return []
        model = budgets.BudgetModel(self)
        return [model.at_share(share) for share in shares or budgets.SHARES]

    def speculation_trace(self) -> SpeculationTrace:
        """The run for `expertree.comparison.replay`: what selectors and machines would have made of it.

        Raises:
            InvalidRequestError: nothing was decoded, or the model has no experts.
        """
        from expertree.profile.draft_trace import speculation_trace

        return speculation_trace(self)

    def advise(self, model: Model | None = None, seconds: float = 30.0) -> dict[str, Any]:
        """Finds what holds the run back and what would help; kept in `facts["advice"]` (docs/profile.md).

        Args:
            model: the loaded model, to probe the machine's limits and to try drafts; None judges by the profile alone.
            seconds: about how long that may take.
        """
        from expertree.profile.advice import advise

        self.facts["advice"] = advise(self, model, seconds)
        return dict(self.facts["advice"])

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an .npz file that `load` and `expertree replay` read.

        Raises:
            DeviceError: the disk does not take it.
        """
        arrays: dict[str, Any] = {
            f"{name}.{column}": values
            for name, table in self.tables().items()
            for column, values in table.arrays().items()
        }
        head = {"schema": SCHEMA, "zones": ZONES, "kinds": KINDS, "purposes": PURPOSES, "facts": self.facts}
        _write(path, lambda file: np.savez_compressed(file, head=json.dumps(head), **arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Reads what `save` wrote.

        Raises:
            InvalidRequestError: it is no such file, or of another version.
        """
        with reading_npz(path, f"profile of schema {SCHEMA}", "`expertree profile` makes one") as saved:
            head = json.loads(str(saved["head"]))
            if head.get("schema") != SCHEMA or tuple(head["zones"]) != ZONES:
                raise InvalidRequestError(f"{path}: not of schema {SCHEMA}; record it again")
            tables: dict[str, dict[str, Any]] = {name: {} for name in _TABLES}
            for key in saved.files:
                table, _, column = key.partition(".")
                if column and table in tables:
                    tables[table][column] = saved[key]
            return cls.of(head["facts"], tables, str(path))

    # For programs and people.

    def json(self) -> dict[str, Any]:
        """All of it as JSON values: facts, and each table as an object of columns. Large; `facts` alone is small."""
        tables = {
            name: {column: values.tolist() for column, values in table.arrays().items()}
            for name, table in self.tables().items()
        }
        return {"schema": SCHEMA, "zones": ZONES, "kinds": KINDS, "purposes": PURPOSES, "facts": self.facts, **tables}

    def summary(self) -> str:
        """One screen of text: the speed, where the time went, what holds it back, and, after `advise`, what to try."""
        return summary(self)

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Writes `json()`. Raises DeviceError when the disk does not take it."""
        text = json.dumps(self.json(), separators=(",", ":"))
        _write(path, lambda file: file.write(text.encode()))

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the time line of steps and reads for ui.perfetto.dev or chrome://tracing. Raises DeviceError when the
        disk does not take it."""
        text = json.dumps(trace_events(self), separators=(",", ":"))
        _write(path, lambda file: file.write(text.encode()))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes a self-contained HTML page. Raises DeviceError when the disk does not take it."""
        from expertree.profile.report import write_report

        write_report(self, Path(path))


def is_profile(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is a profile, of whatever version."""
    try:
        with reading_npz(path, "profile", "") as saved:
            return str(json.loads(str(saved["head"]))["schema"]).startswith("expertree.profile/")
    except InvalidRequestError:
        return False


def _write(path: str | os.PathLike[str], write: Any) -> None:
    try:
        with Path(path).open("wb") as file:
            write(file)
    except OSError as error:
        raise DeviceError(f"{path}: the profile cannot be written: {error.strerror}") from error
