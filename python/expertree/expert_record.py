"""What is known of a model's experts from earlier runs: how often each is used, and what reading and running one costs.

One small file per model and machine in the cache folder. It only makes things faster: losing it loses no correctness.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.errors import DeviceError, ModelFormatError
from expertree.models.registry import cache_folder

SCHEMA = "expertree.experts/1"
_HEAD_BYTES = 2**20


@dataclass(frozen=True)
class Costs:
    """Measured seconds and bytes per second; 0: not measured yet."""

    read_bytes_per_second: float = 0.0
    run_base_seconds: float = 0.0  # one expert in memory, its weights read once
    run_row_seconds: float = 0.0  # and for each row
    step_seconds: float = 0.0  # one token through the model, waiting for the disk left out
    link_bytes_per_second: float = 0.0  # to a GPU's memory
    device_base_seconds: float = 0.0  # as run_base_seconds, of an expert on the GPU
    device_row_seconds: float = 0.0

    def completed_by(self, earlier: Costs) -> Costs:
        """What was not measured this time is taken from an earlier run; a base and its row go together."""
        names = {
            name for group in _MEASURED_TOGETHER if not any(getattr(self, name) for name in group) for name in group
        }
        return replace(self, **{name: getattr(earlier, name) for name in names})


_MEASURED_TOGETHER = (
    ("read_bytes_per_second",),
    ("run_base_seconds", "run_row_seconds"),
    ("step_seconds",),
    ("link_bytes_per_second",),
    ("device_base_seconds", "device_row_seconds"),
)


# What a record weighs against the session that goes on from it, in rows; and what one that does not say is taken for.
PROFILE_ROWS = float(_core.ExpertPager.profile_rows)


@dataclass(frozen=True)
class ExpertRecord:
    """Of each layer's experts, float32 (n_layers, n_experts)."""

    rates: npt.NDArray[np.float32]  # uses per row of text
    costs: Costs = field(default_factory=Costs)
    n_rows: float = PROFILE_ROWS  # that rates are worth as a sample
    reuse: npt.NDArray[np.float32] | None = None  # shares of uses by how many others of the layer were used since

    def going_on_from(self, earlier: ExpertRecord, n_rows: int) -> ExpertRecord:
        """The record of a session of n_rows that began with an earlier one; `rates` have it in them already.

        A mean of samples of unlike weight is worth fewer rows than it has: (sum of weights)² / sum of their squares.
        """
        if n_rows == 0:
            return replace(earlier, rates=self.rates, costs=self.costs.completed_by(earlier.costs))
        weight = n_rows + PROFILE_ROWS
        worth = weight**2 / (n_rows + PROFILE_ROWS**2 / max(1.0, earlier.n_rows))
        reuse = self.reuse
        if reuse is not None and earlier.reuse is not None:
            reuse = (n_rows * reuse + np.float32(PROFILE_ROWS) * earlier.reuse) / np.float32(weight)
        return ExpertRecord(self.rates, self.costs.completed_by(earlier.costs), worth, reuse)


def record_path(model: str | os.PathLike[str]) -> Path:
    """Where the record of a model file lies on this machine. The name depends on the file's beginning and size."""
    path = Path(model)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            digest.update(file.read(_HEAD_BYTES))
        digest.update(f"{path.stat().st_size} {platform.node()} {platform.machine()}".encode())
    except OSError as error:
        raise DeviceError(f"{path}: cannot read it: {error.strerror}; check the disk") from error
    return cache_folder() / "experts" / f"{digest.hexdigest()[:32]}.json"


def save_record(path: str | os.PathLike[str], record: ExpertRecord) -> None:
    """Writes a record whole or not at all: a crash or a full disk leaves the old one.

    Raises:
        DeviceError: the folder or the disk does not take it.
    """
    target = Path(path)
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "n_layers": record.rates.shape[0],
        "n_experts": record.rates.shape[1],
        **_packed("rates", "crc32", record.rates),
        "n_steps": record.n_rows,
        "costs": asdict(record.costs),
    }
    if record.reuse is not None:
        body.update(_packed("reuse", "reuse_crc32", record.reuse))
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
        with os.fdopen(descriptor, "w") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise DeviceError(
            f"{target}: cannot save how often experts are used: {error.strerror}; free some space, or choose another "
            "folder with EXPERTREE_CACHE"
        ) from error


def load_record(path: str | os.PathLike[str]) -> ExpertRecord | None:
    """The saved record; None when there is none.

    Raises:
        ModelFormatError: it is damaged.
        DeviceError: it cannot be read.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeviceError(f"{source}: cannot read it: {error.strerror}; delete it, it will be made anew") from error
    try:
        return _parse(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFormatError(
            f"{source}: no record of a model's experts ({error}); delete it, it will be made anew"
        ) from error


def _packed(name: str, check: str, values: npt.NDArray[np.float32]) -> dict[str, Any]:
    raw = np.ascontiguousarray(values, "<f4").tobytes()
    return {name: base64.b64encode(raw).decode(), check: binascii.crc32(raw)}


def _unpacked(body: dict[str, Any], name: str, check: str) -> npt.NDArray[np.float32]:
    raw = base64.b64decode(body[name], validate=True)
    n_layers, n_experts = int(body["n_layers"]), int(body["n_experts"])
    if n_layers < 1 or n_experts < 1 or len(raw) != 4 * n_layers * n_experts:
        raise ValueError("sizes differ")
    if binascii.crc32(raw) != body[check]:
        raise ValueError("check sum differs")
    values = np.frombuffer(raw, "<f4").reshape(n_layers, n_experts).astype(np.float32)
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("values out of range")
    return values


def _parse(body: dict[str, Any]) -> ExpertRecord:
    if body["schema"] != SCHEMA:
        raise ValueError(f"schema is {str(body['schema'])[:40]!r}")
    rates = _unpacked(body, "rates", "crc32")
    costs = Costs(**{name: float(value) for name, value in body["costs"].items()})
    n_rows = float(body.get("n_steps", PROFILE_ROWS))
    if not all(0 <= value < 1e15 for value in (n_rows, *asdict(costs).values())):
        raise ValueError("values out of range")
    reuse = _unpacked(body, "reuse", "reuse_crc32") if "reuse" in body else None
    return ExpertRecord(rates, costs, n_rows, reuse)
