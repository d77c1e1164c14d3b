"""Layer by expert: how often each expert was used, in memory, and read when it was needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from expertree.profile.report import palette
from expertree.profile.report.chart import Axis, Chart, drawing, label_at, text_width
from expertree.profile.report.figure import figure, key, missing, section
from expertree.profile.report.markup import Markup, element, join
from expertree.profile.report.png import png_url
from expertree.profile.report.scales import Scale, number
from expertree.profile.tables import Doubles

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_DENSE = "A dense model has no experts."
_FEW = 14  # experts whose maps stand side by side
_UNUSED = "No pass ran an expert."
_LEAST_CELL = 1.5  # pixels: smaller cells are smoothed by the browser


def expert_maps(profile: Profile) -> Markup:
    words = (
        "Each cell is one expert of one layer; the darker, the more. "
        "A dark stripe in the last map is a layer or an expert that keeps being read from disk."
    )
    if not profile.facts["model"]["n_moe_layers"]:
        return section("Experts", "", missing("Use, residency and misses", _DENSE))
    e = profile.experts
    if not e.uses.any():
        return section("Experts", words, missing("Use, residency and misses", _UNUSED))
    misses = e.misses + e.late
    figures = [
        _map(profile, "uses", "Use: passes that needed the expert", e.uses.astype(float), "passes"),
        _map(
            profile,
            "resident",
            "Residency: share of steps at whose end it was in memory",
            100.0 * e.resident.astype(float),
            "%",
            100.0,
        ),
    ]
    title = "Misses: uses that had to wait for the disk"
    if misses.any():
        figures.append(_map(profile, "misses", title, misses.astype(float), "misses"))
    else:
        figures.append(missing(title, "None: every expert was in memory whenever it was needed."))
    data = {
        "layers": profile.facts["model"]["moe_layers"],
        "uses": e.uses.tolist(),
        "resident": np.rint(e.resident * 100).astype(int).tolist(),
        "misses": misses.tolist(),
    }
    script = Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
    store = element("script", script, type="application/json", id="experts")
    return join(section("Experts", words, _over_time(profile), *figures), store)


def _map(profile: Profile, name: str, title: str, values: Doubles, unit: str, highest: float | None = None) -> Markup:
    n_layers, n_experts = values.shape
    most = float(values.max()) if highest is None else highest
    url = png_url(palette.shades(values / max(most, 1e-12)))
    layers = profile.facts["model"]["moe_layers"]

    def draw(width: float) -> Markup:
        left = 10 + text_width(str(max(layers)))
        cell_x = min(28.0, (width - left - 8) / n_experts)
        cell_y = float(np.clip(360 / n_layers, 3.0, 14.0))
        right, bottom = left + cell_x * n_experts, 20 + cell_y * n_layers
        image = element(
            "image",
            href=url,
            x=left,
            y=20,
            width=right - left,
            height=bottom - 20,
            preserveAspectRatio="none",
            class_="map mark" + (" sharp" if min(cell_x, cell_y) >= _LEAST_CELL else ""),
            data_map=name,
        )
        border = element(
            "rect",
            x=left,
            y=20,
            width=right - left,
            height=bottom - 20,
            fill="none",
            stroke=palette.FAINT,
            stroke_width=0.7,
        )
        axes = _axes(n_experts, layers, (left, right), (20.0, bottom), (cell_x, cell_y))
        return drawing(width, bottom + 36, title, join(image, border, axes))

    ramp = join(_ramp(), element("span", f"0 to {number(most)} {unit}", class_="key"))
    return figure(title, draw, keys=[ramp], half=n_experts <= _FEW)


def _axes(
    n_experts: int, layers: list[int], x: tuple[float, float], y: tuple[float, float], cell: tuple[float, float]
) -> Markup:
    left, right = x
    top, bottom = y
    across = Scale(-0.5, n_experts - 0.5, left, right)
    parts = [label_at(2, 12, "layer", "start", "axis")]
    for tick in across.ticks(max(1, int((right - left) / 50))):
        if tick == round(tick):
            parts.append(label_at(across(tick), bottom + 14, number(tick), "middle"))
    every = max(1, int(np.ceil(24 / cell[1])))
    for row in range(0, len(layers), every):
        parts.append(label_at(left - 5, top + (row + 0.5) * cell[1] + 4, str(layers[row]), "end"))
    side = (right, "end") if right - left > 60 else (left, "start")
    parts.append(label_at(side[0], bottom + 30, "expert", side[1], "axis"))
    return join(*parts)


def _ramp() -> Markup:
    colors = palette.shades(np.linspace(0, 1, 12))
    steps = [
        element("rect", x=i * 6, y=0, width=6.2, height=12, fill="#" + "".join(f"{c:02x}" for c in color))
        for i, color in enumerate(colors.tolist())
    ]
    return element("svg", join(*steps), width=72, height=12, aria_hidden="true", class_="ramp")


def _over_time(profile: Profile) -> Markup:
    """Experts that a step needed, by where they were."""
    title = "Experts needed, by step"
    s = profile.steps
    chosen = np.flatnonzero(s.decoding() & (s.experts_touched > 0))
    if not chosen.size:
        return missing(title, "No token was decoded.")
    counts = np.stack([s.experts_hit, s.experts_late, s.experts_missed], axis=1)[chosen].astype(float)
    styles = (palette.HIT, palette.LATE, palette.MISS)

    def draw(width: float) -> Markup:
        bins = np.array_split(np.arange(len(chosen)), min(len(chosen), int(width / 5)))
        means = np.stack([counts[ids].mean(axis=0) for ids in bins])
        x = Axis("decoding step", 0.5, len(chosen) + 0.5, whole=True)
        chart = Chart(width, 220, x, Axis.from_zero("experts per step, all layers", means.sum(axis=1).max()))
        for ids, parts in zip(bins, means.tolist(), strict=True):
            at = (ids[0] + 0.5 + 0.08 * len(ids), ids[-1] + 1.5 - 0.08 * len(ids))
            top = 0.0
            for style, part in zip(styles, parts, strict=True):
                if part > 0:
                    chart.bar(at, (top, top + part), style, f"step {ids[0] + 1}: {part:.0f} {style.label}")
                    top += part
        return chart.svg(title)

    return figure(title, draw, keys=[key(style) for style in styles], note=_prefetch_note(profile))


def _prefetch_note(profile: Profile) -> str:
    s = profile.steps
    begun = int(s.prefetched.sum())
    if not begun:
        return "Nothing was read ahead on a guess."
    used, late, wasted = (int(column.sum()) for column in (s.prefetch_used, s.prefetch_late, s.prefetch_wasted))
    return f"Reads begun on a guess: {begun:,}; in time {used:,}, late {late:,}, given up unused {wasted:,}."
