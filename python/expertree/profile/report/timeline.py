"""One step's time line: what was computed, and what was read from disk meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from expertree.profile.report import palette
from expertree.profile.report.chart import drawing, label_at, text_width
from expertree.profile.report.figure import figure, key, missing, section
from expertree.profile.report.markup import Markup, element, join
from expertree.profile.report.scales import Scale, counted, number
from expertree.profile.tables import KINDS, READ_REASONS, ZONES, Doubles

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_MOST_LANES = 16
_LEAST_WIDTH = 0.25  # pixels; shorter pieces of one zone are drawn together
_WAIT = ZONES.index("wait")
_LEFT, _RIGHT = 8.0, 8.0


@dataclass(frozen=True)
class Overlap:
    """Seconds of a step: computing, waiting, some read under way, and both computing and reading."""

    computing: float
    waiting: float
    reading: float
    both: float


def timeline(profile: Profile) -> Markup:
    title = "One decoding step"
    words = (
        "Above, what the engine did; below, each read of an expert, one row per read that was under way at a time. "
        "Reads under coloured pieces cost nothing; waiting is what is left of them."
    )
    step = typical_step(profile)
    if step is None:
        return section("Time line", words, missing(title, _why_none(profile)))
    return section("Time line", words, _figure(profile, step))


def _why_none(profile: Profile) -> str:
    if not profile.steps.decoding().any():
        return "No token was decoded, so there is no step to show."
    return "No pieces of time were kept: max_events was 0, or all decoding came after the last one kept."


def typical_step(profile: Profile) -> int | None:
    """The decoding step nearest to the median time, of those whose pieces were kept; with reads, if any has some."""
    s, e = profile.steps, profile.events
    counts = np.bincount(e.step, minlength=len(s))
    kept = s.decoding() & (counts > 0)
    if profile.facts["totals"]["events_dropped"] and kept.any():
        kept &= np.arange(len(s)) < np.flatnonzero(counts)[-1]  # the last one may be cut
    chosen = np.flatnonzero(kept)
    if not chosen.size:
        return None
    with_reads = chosen[s.bytes_experts[chosen] > 0]
    if with_reads.size * 2 >= chosen.size:
        chosen = with_reads
    return int(chosen[np.argmin(np.abs(s.wall[chosen] - np.median(s.wall[chosen])))])


def overlap(profile: Profile, step: int) -> Overlap:
    s, e, r = profile.steps, profile.events, profile.reads
    begin, end = float(s.start[step]), float(s.start[step] + s.wall[step])
    mine = (e.step == step) & (e.zone != _WAIT)
    computing = _merged(e.begin[mine], e.end[mine], begin, end)
    reading = _merged(r.begin, r.end, begin, end)
    both = sum(
        float(_merged(r.begin, r.end, a, b)[:, 1].sum() - _merged(r.begin, r.end, a, b)[:, 0].sum())
        for a, b in computing
    )
    lengths = [float((pieces[:, 1] - pieces[:, 0]).sum()) for pieces in (computing, reading)]
    return Overlap(lengths[0], float(s.seconds("wait")[step]), lengths[1], both)


def _merged(begin: Doubles, end: Doubles, low: float, high: float) -> Doubles:
    """(n, 2): the union of the intervals, cut to low and high."""
    there = (end > low) & (begin < high)
    begins, ends = np.clip(begin[there], low, high), np.clip(end[there], low, high)
    if not begins.size:
        return np.zeros((0, 2))
    order = np.argsort(begins)
    begins, latest = begins[order], np.maximum.accumulate(ends[order])
    new = np.flatnonzero(np.concatenate([[True], begins[1:] > latest[:-1]]))
    return np.stack([begins[new], latest[np.append(new[1:] - 1, len(latest) - 1)]], axis=1)


def _figure(profile: Profile, step: int) -> Markup:
    s = profile.steps
    found = overlap(profile, step)
    wall = float(s.wall[step])
    kind = "drafted" if KINDS[s.kind[step]] == "speculate" else "plain"
    size = f"{counted(s.rows[step], 'row')}, {counted(s.tokens[step], 'token')}"
    title = f"Step {step + 1}: {kind}, {size}, {number(wall * 1e3)} ms"
    note = f"Computing took {number(found.computing * 1e3)} ms, waiting for experts {number(found.waiting * 1e3)} ms."
    if found.reading > 0:
        note += (
            f" The disk was busy for {number(found.reading * 1e3)} ms; "
            f"{found.both / found.reading:.0%} of that ran beside computing."
        )
    else:
        note += " Nothing was read from disk meanwhile."
    e, r = profile.events, profile.reads
    used = {palette.PHASE_OF_ZONE[ZONES[zone]].style for zone in np.unique(e.zone[e.step == step]).tolist()}
    keys = [key(phase.style) for phase in palette.PHASES if phase.style in used]
    there = (r.end > s.start[step]) & (r.begin < s.start[step] + wall)
    keys += [
        key(style, f"read: {style.label}") for i, style in enumerate(palette.READS) if (r.reason[there] == i).any()
    ]
    return figure(title, lambda width: _draw(profile, step, width), note=note, keys=keys)


def _draw(profile: Profile, step: int, width: float) -> Markup:
    s, r = profile.steps, profile.reads
    begin, wall = float(s.start[step]), float(s.wall[step])
    x = Scale(0.0, wall * 1e3, _LEFT, width - _RIGHT)
    there = np.flatnonzero((r.end > begin) & (r.begin < begin + wall))
    lanes = {lane: row for row, lane in enumerate(np.unique(r.lane[there]).tolist())}
    row_height = 12.0 if len(lanes) <= 4 else 7.0
    n_rows = min(len(lanes), _MOST_LANES)
    parts = [label_at(_LEFT, 14, "engine", "start", "axis"), _pieces(profile, step, x, 20.0, 44.0)]
    base = 74.0
    if lanes:
        parts.append(label_at(_LEFT, 90, _reads_label(len(lanes)), "start", "axis"))
        base = 98 + n_rows * row_height
        for i in there.tolist():
            row = lanes[int(r.lane[i])]
            if row < _MOST_LANES:
                parts.append(_read(profile, i, x, begin, wall, 96 + row * row_height, row_height - 1))
    else:
        parts.append(label_at(_LEFT, 90, "no reads", "start", "axis"))
        base = 98.0
    parts.append(_axis(x, base, width))
    return drawing(width, base + 34, "time line of one step", join(*parts))


def _reads_label(n_lanes: int) -> str:
    return f"reads: {_MOST_LANES} of the {n_lanes} at a time" if n_lanes > _MOST_LANES else "reads from disk"


def _axis(x: Scale, base: float, width: float) -> Markup:
    ticks = x.ticks(max(2, int(width / 90)))
    lines = "".join(f"M{x(tick):.1f},{base:.1f} v4" for tick in ticks)
    labels = [label_at(x(tick), base + 15, number(tick), _anchor(x(tick), number(tick), width)) for tick in ticks]
    line = element("path", d=f"M{x.begin:.1f},{base:.1f} H{x.end:.1f} {lines}", fill="none", stroke=palette.FAINT)
    return join(line, *labels, label_at(x.end, base + 30, "ms since the step began", "end", "axis"))


def _anchor(x: float, words: str, width: float) -> str:
    half = 0.5 * text_width(words)
    return "start" if x < half else "end" if x > width - half else "middle"


def _pieces(profile: Profile, step: int, x: Scale, top: float, height: float) -> Markup:
    e = profile.events
    begin, wall = float(profile.steps.start[step]), float(profile.steps.wall[step])
    mine = np.flatnonzero(e.step == step)
    mine = mine[np.argsort(e.begin[mine])]
    drawn: list[tuple[int, int, float, float]] = []  # zone, layer, begin, end in ms
    least = _LEAST_WIDTH / max(1e-9, x(1.0) - x(0.0))
    for i in mine.tolist():
        zone, layer = int(e.zone[i]), int(e.layer[i])
        a, b = (float(np.clip(t - begin, 0.0, wall)) * 1e3 for t in (e.begin[i], e.end[i]))
        if drawn and a - drawn[-1][3] < least and (drawn[-1][0] == zone or b - a < least):
            drawn[-1] = (*drawn[-1][:3], b)
        else:
            drawn.append((zone, layer, a, b))
    parts = []
    for zone, layer, a, b in drawn:
        style = palette.PHASE_OF_ZONE[ZONES[zone]].style
        where = f", layer {layer}" if layer >= 0 else ""
        words = element("title", f"{style.label}{where}: {b - a:.3f} ms, from {a:.3f}")
        parts.append(
            element(
                "rect", words, x=x(a), y=top, width=max(0.3, x(b) - x(a)), height=height, fill=style.fill, class_="mark"
            )
        )
    return join(*parts)


def _read(profile: Profile, i: int, x: Scale, begin: float, wall: float, top: float, height: float) -> Markup:
    r = profile.reads
    a, b = (float(np.clip(t - begin, 0.0, wall)) * 1e3 for t in (r.begin[i], r.end[i]))
    reason = READ_REASONS[r.reason[i]]
    words = (
        f"{reason}: expert {r.expert[i]} of MoE layer {r.layer[i]}, {r.bytes[i] * 1e-6:.2f} MB in "
        f"{(r.end[i] - r.begin[i]) * 1e3:.2f} ms" + (", failed" if r.failed[i] else "")
    )
    style = palette.READS[r.reason[i]]
    shape = {"x": x(a), "y": top, "width": max(0.4, x(b) - x(a)), "height": height}
    return element("rect", element("title", words), fill=style.fill, class_="mark", **shape)
