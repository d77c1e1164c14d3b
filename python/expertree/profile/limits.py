"""What holds a profiled run back, and how close it is to that."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree.profile.tables import ZONES

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_MUCH = 0.3  # of the time: worth naming before what the hardware does


@dataclass(frozen=True)
class Limit:
    """name: disk, memory, int8, draft, python, or none. share: how close to it the run was, 0 to 1."""

    name: str
    share: float
    text: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Decoding:
    """The decoding steps of a profile together. seconds: from one step's end to the next one's; zones: by name."""

    steps: int
    tokens: int
    seconds: float
    zones: dict[str, float]
    bytes_memory: float
    bytes_disk: float
    rows: int

    @classmethod
    def of(cls, profile: Profile) -> Decoding:
        s = profile.steps
        chosen = s.decoding()
        sums = s.zone_seconds[chosen].sum(axis=0)
        return cls(
            steps=int(chosen.sum()),
            tokens=int(s.tokens[chosen].sum()),
            seconds=float(sums.sum()),
            zones=dict(zip(ZONES, sums.tolist(), strict=True)),
            bytes_memory=float(s.bytes_memory[chosen].sum()),
            bytes_disk=float(s.bytes_experts[chosen].sum()),
            rows=int(s.rows[chosen].sum()),
        )

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def find_limit(profile: Profile) -> Limit:
    """The nearest limit of decoding. Memory and arithmetic need `Profile.advise(model)`, which probes them."""
    d = Decoding.of(profile)
    if d.tokens == 0 or d.seconds <= 0:
        return Limit("none", 0.0, "no token was decoded")
    machine = profile.facts["machine"]
    per_token = 1e-6 / d.tokens
    waiting = d.zones["wait"] / d.seconds
    if waiting > _MUCH:
        speed = machine["disk_gb_per_s"] or 0.0
        busy = min(1.0, d.bytes_disk / d.seconds / (speed * 1e9)) if speed else 0.0
        return Limit(
            "disk",
            busy,
            f"the disk: experts that were not in memory, {d.bytes_disk * per_token:,.0f} MB a token, came at "
            f"{speed:.2f} GB/s; it was busy {busy:.0%} of the time, and {waiting:.0%} of the time nothing else ran",
        )
    drafting = sum(d.zones[zone] for zone in ("draft", "select")) / d.seconds
    if drafting > _MUCH:
        return Limit(
            "draft", drafting, f"drafting: {drafting:.0%} of the time goes into trees before they are verified"
        )
    outside = d.zones["python"] / d.seconds
    if outside > _MUCH:
        return Limit("python", outside, f"the caller: {outside:.0%} of the time passes between the steps, in Python")
    return _hardware(profile, d)


def _hardware(profile: Profile, d: Decoding) -> Limit:
    machine = profile.facts["machine"]
    computing = d.seconds - d.zones["wait"] - d.zones["python"]
    if not machine["read_gb_per_s"]:
        return Limit("memory", 0.0, "computing; how close to the memory's and the CPU's limits was not measured")
    operations = 2.0 * profile.facts["model"]["n_multiply_adds"] * d.rows
    of_memory = d.bytes_memory / computing / (machine["read_gb_per_s"] * 1e9)
    of_int8 = operations / computing / (machine["int8_gops"] * 1e9) if machine["int8_gops"] else 0.0
    speeds = f"memory is read at {of_memory:.0%} of its {machine['read_gb_per_s']:.1f} GB/s"
    if machine["int8_gops"]:
        speeds += f", int8 arithmetic runs at {of_int8:.0%} of its {machine['int8_gops']:.0f} GOPS"
    if of_memory >= of_int8:
        share = float(np.clip(of_memory, 0.0, 1.0))
        return Limit(
            "memory",
            share,
            f"reading weights from memory, {d.bytes_memory * 1e-6 / d.tokens:,.0f} MB a token: {speeds}",
        )
    return Limit("int8", float(np.clip(of_int8, 0.0, 1.0)), f"arithmetic: {speeds}")
