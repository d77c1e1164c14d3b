"""A profile as a trace that ui.perfetto.dev and chrome://tracing show (the Trace Event Format's JSON)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from expertree.profile.tables import KINDS, PURPOSES, READ_REASONS, ZONES

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_STEPS, _READS = 1, 2  # process numbers, which group rows


def trace_events(profile: Profile) -> dict[str, Any]:
    """Steps with their zones on one row per thread, reads on one row per lane, counters of memory and bytes."""
    events: list[dict[str, Any]] = [
        _name("process_name", _STEPS, 0, f"{profile.facts['model']['name']}: steps"),
        _name("process_name", _READS, 0, "experts read from disk"),
    ]
    events += [_name("thread_name", _STEPS, n, f"thread {n}") for n in sorted(set(profile.events.thread.tolist()))]
    events += [_name("thread_name", _READS, n, f"read {n}") for n in sorted(set(profile.reads.lane.tolist()))]
    return {"traceEvents": events + _steps(profile) + _zones(profile) + _reads(profile), "displayTimeUnit": "ms"}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _piece(name: str, process: int, thread: int, begin: float, end: float, **args: Any) -> dict[str, Any]:
    microseconds: dict[str, Any] = {"ts": round(begin * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
    return {"name": name, "ph": "X", "pid": process, "tid": thread, **microseconds, "args": args}


def _steps(profile: Profile) -> list[dict[str, Any]]:
    s = profile.steps
    thread_of = dict(zip(profile.events.step.tolist(), profile.events.thread.tolist(), strict=True))
    shown = ("rows", "tokens", "drafted", "verified", "accepted", "experts_touched", "experts_missed", "bytes_disk")
    events = []
    for i in range(len(s)):
        begin, end = float(s.start[i]), float(s.start[i] + s.wall[i])
        args: dict[str, Any] = {name: int(getattr(s, name)[i]) for name in shown}
        if s.predicted[i] > 0:
            args |= {"predicted_ms": float(s.predicted[i] * 1e3), "measured_ms": float(s.measured[i] * 1e3)}
        events.append(_piece(KINDS[s.kind[i]], _STEPS, thread_of.get(i, 0), begin, end, step=i, **args))
        memory = {name: int(size) for name, size in zip(PURPOSES, s.memory_bytes[i].tolist(), strict=True)}
        events.append({"name": "memory", "ph": "C", "pid": _STEPS, "ts": round(end * 1e6, 3), "args": memory})
    return events


def _zones(profile: Profile) -> list[dict[str, Any]]:
    e = profile.events
    columns = (e.step, e.zone, e.thread, e.layer, e.begin, e.end)
    return [
        _piece(ZONES[zone], _STEPS, thread, begin, end, step=step, **({"layer": layer} if layer >= 0 else {}))
        for step, zone, thread, layer, begin, end in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _reads(profile: Profile) -> list[dict[str, Any]]:
    r = profile.reads
    columns = (r.layer, r.expert, r.reason, r.lane, r.failed, r.bytes, r.begin, r.end)
    return [
        _piece(f"{READ_REASONS[reason]} {layer}.{expert}", _READS, lane, begin, end, bytes=size, **_failed(failed))
        for layer, expert, reason, lane, failed, size, begin, end in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _failed(failed: bool) -> dict[str, bool]:
    return {"failed": True} if failed else {}
