"""Where each token's time went: by step, by layer, by kind of step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from expertree.profile.report import palette
from expertree.profile.report.chart import Axis, Chart
from expertree.profile.report.figure import figure, key, missing, section
from expertree.profile.report.markup import Markup
from expertree.profile.tables import KINDS, ZONES, Doubles

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_KIND_TEXT = {"prefill": "prompts", "decode": "plain steps", "speculate": "drafting", "evaluate": "evaluating"}
_LEAST_SHARE = 0.002  # phases below it everywhere are not drawn
_NO_TOKEN = "No token was decoded: the run ended with its prompts."


def step_times(profile: Profile) -> Markup:
    return section(
        "Time",
        "Every moment counts once. A step that keeps drafted tokens is divided by all the tokens that it gave.",
        _by_step(profile),
        _by_layer(profile),
        _by_kind(profile),
    )


def by_phase(zone_seconds: Doubles) -> Doubles:
    """(..., phases) of (..., zones)."""
    columns = [[ZONES.index(zone) for zone in phase.zones] for phase in palette.PHASES]
    sums: Doubles = np.stack([zone_seconds[..., ids].sum(axis=-1) for ids in columns], axis=-1)
    return sums


def shown_phases(sums: Doubles) -> list[int]:
    """Phases that some bar of (bars, phases) shows."""
    shares = sums / np.maximum(sums.sum(axis=-1, keepdims=True), 1e-12)
    return [int(i) for i in np.flatnonzero(shares.max(axis=0) >= _LEAST_SHARE)]


def _by_step(profile: Profile) -> Markup:
    title = "Time per token, by step"
    s = profile.steps
    chosen = np.flatnonzero(s.decoding() & (s.tokens > 0))
    if not chosen.size:
        return missing(title, _NO_TOKEN)
    phases = by_phase(s.zone_seconds[chosen])

    def draw(width: float) -> Markup:
        bins = np.array_split(np.arange(len(chosen)), min(len(chosen), int(width / 5)))
        heights = np.stack([phases[ids].sum(axis=0) / s.tokens[chosen[ids]].sum() * 1e3 for ids in bins])
        chart = Chart(
            width,
            300,
            Axis("decoding step", 0.5, len(chosen) + 0.5, whole=True),
            Axis.from_zero("ms per token", heights.sum(axis=1).max()),
        )
        for ids, parts in zip(bins, heights, strict=True):
            name = f"step {ids[0] + 1}" if len(ids) == 1 else f"steps {ids[0] + 1} to {ids[-1] + 1}"
            at = (ids[0] + 0.5 + 0.08 * len(ids), ids[-1] + 1.5 - 0.08 * len(ids))
            _stack(chart, at, parts, f"{name}: {parts.sum():.2f} ms per token", "ms")
        return chart.svg(title)

    note = "Bars of many steps are their mean." if len(chosen) > 60 else ""
    return figure(title, draw, note=note, keys=_keys(phases))


def _stack(chart: Chart, x: tuple[float, float], parts: Doubles, title: str, unit: str) -> None:
    top = 0.0
    for phase, height in zip(palette.PHASES, parts.tolist(), strict=True):
        if height > 0:
            chart.bar(x, (top, top + height), phase.style, f"{title}; {phase.style.label} {height:.2f} {unit}")
            top += height


def _keys(sums: Doubles) -> list[Markup]:
    return [key(palette.PHASES[i].style) for i in shown_phases(sums)]


def _by_layer(profile: Profile) -> Markup:
    title = "Time of a decoding step, by layer"
    s = profile.steps
    n_steps = int(s.decoding().sum())
    kinds = [KINDS.index("decode"), KINDS.index("speculate")]
    heights = by_phase(profile.layers.zone_seconds[:, kinds].sum(axis=1)) / max(1, n_steps) * 1e3
    if not n_steps or not heights.any():
        return missing(title, _NO_TOKEN)

    def draw(width: float) -> Markup:
        n = len(heights)
        highest = float(heights.sum(axis=1).max())
        chart = Chart(width, 220, Axis("layer", -0.5, n - 0.5, whole=True), Axis.from_zero("ms per step", highest))
        for layer, parts in enumerate(heights):
            _stack(chart, (layer - 0.4, layer + 0.4), parts, f"layer {layer}: {parts.sum():.3f} ms", "ms")
        return chart.svg(title)

    outside = 1.0 - float(heights.sum()) / max(1e-12, float(s.zone_seconds[s.decoding()].sum()) / n_steps * 1e3)
    note = f"Drafting, the head, sampling and Python belong to no layer: {max(0.0, outside):.0%} of the time."
    return figure(title, draw, note=note, keys=_keys(heights))


def _by_kind(profile: Profile) -> Markup:
    title = "Shares of time, by kind of step"
    s = profile.steps
    names = [name for name in KINDS if s.of_kind(name).any()]
    sums = np.stack([by_phase(s.zone_seconds[s.of_kind(name)]).sum(axis=0) for name in names]) if names else None
    if sums is None or not sums.any():
        return missing(title, "No step was run.")
    shares = sums / np.maximum(1e-12, sums.sum(axis=1, keepdims=True))
    labels = {i: _KIND_TEXT[name] for i, name in enumerate(names)}

    def draw(width: float) -> Markup:
        y = Axis("", len(names) - 0.5, -0.5, ticks=(), format=str)
        chart = Chart(width, 60 + 46 * len(names), Axis.percent("share of its time"), y)
        for i, parts in enumerate(shares):
            begin = 0.0
            chart.words(0.0, i - 0.3, f"{labels[i]}, {sums[i].sum():,.2f} s")
            for phase, part in zip(palette.PHASES, parts.tolist(), strict=True):
                if part > 0:
                    words = f"{labels[i]}: {phase.style.label} {part:.1%}"
                    chart.bar((begin, begin + part), (i - 0.18, i + 0.32), phase.style, words)
                    begin += part
        return chart.svg(title)

    return figure(title, draw, keys=_keys(sums))
