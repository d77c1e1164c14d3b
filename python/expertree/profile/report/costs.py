"""What the cost model foretold, and what steps took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from expertree.profile.report import palette
from expertree.profile.report.chart import Axis, Chart
from expertree.profile.report.dots import thinned
from expertree.profile.report.figure import dot_key, figure, line_key, missing, section
from expertree.profile.report.markup import Markup
from expertree.profile.report.scales import counted
from expertree.profile.tables import Bools

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_MEDIAN_OF = 8  # steps at least
_NOT_ASKED = "Nothing was foretold: only a selector asks the cost model, and only drafting has a selector."


def costs(profile: Profile) -> Markup:
    words = "Before a step the cost model foretells what verifying will take; selectors choose by that."
    return section("Cost model", words, _predicted(profile), _errors(profile))


def _foretold(profile: Profile) -> Bools:
    s = profile.steps
    mask: Bools = (s.predicted > 0) & (s.measured > 0)
    return mask


def _predicted(profile: Profile) -> Markup:
    title = "Predicted against measured time"
    chosen = _foretold(profile)
    if not chosen.any():
        return missing(title, _NOT_ASKED, half=True)
    x, y = profile.steps.predicted[chosen] * 1e3, profile.steps.measured[chosen] * 1e3
    ratio = x / y
    within = float(np.mean(np.abs(ratio - 1) <= 0.15))
    highest = float(np.percentile(np.concatenate([x, y]), 98)) * 1.1
    cut = int(((x > highest) | (y > highest)).sum())

    def draw(width: float) -> Markup:
        axis_x, axis_y = Axis.from_zero("predicted, ms", highest), Axis.from_zero("measured, ms", highest)
        chart = Chart(width, 320, axis_x, axis_y)
        chart.line([(0, 0), (chart.x.high, chart.y.high)], palette.FAINT, "2 3", 1.5)
        for a, b in thinned(x, y):
            if a <= chart.x.high and b <= chart.y.high:
                chart.dot(a, b, 2.5, f"predicted {a:.2f} ms, took {b:.2f} ms", palette.ACCENT, opacity=".5")
        return chart.svg(title)

    note = f"Median of predicted over measured {np.median(ratio):.2f}; {within:.0%} of the steps within 15 %."
    note += f" Outside the plot: {counted(cut, 'slow step')}." if cut else ""
    keys = [dot_key("a step", palette.ACCENT, opacity=".6"), line_key("as predicted", palette.FAINT, "2 3")]
    return figure(title, draw, keys=keys, note=note, half=True)


def _errors(profile: Profile) -> Markup:
    title = "Error of the prediction, by step"
    chosen = np.flatnonzero(_foretold(profile))
    if chosen.size < 2:
        return missing(title, _NOT_ASKED if not chosen.size else "Only one step was foretold.", half=True)
    error = np.clip(profile.steps.predicted[chosen] / profile.steps.measured[chosen] - 1, -1.0, 1.0)

    def draw(width: float) -> Markup:
        y = Axis("predicted / measured − 1", -1.0, 1.0, ticks=(-1, -0.5, 0, 0.5, 1), format=_signed)
        chart = Chart(width, 320, Axis("step that was foretold", 0.5, len(error) + 0.5, whole=True), y)
        chart.line([(0.5, 0.0), (len(error) + 0.5, 0.0)], palette.FAINT, None, 1.2)
        for a, b in thinned(np.arange(1, len(error) + 1), error):
            chart.dot(a, b, 2.5, f"step {a:.0f}: {b:+.0%}", palette.ACCENT, opacity=".5")
        if len(error) >= _MEDIAN_OF:
            size = max(4, len(error) // 20)
            middle = [
                (i + size / 2 + 0.5, float(np.median(error[i : i + size])))
                for i in range(0, len(error) - size + 1, size)
            ]
            chart.line(middle, palette.INK)
        return chart.svg(title)

    keys = [dot_key("a step", palette.ACCENT, opacity=".6")]
    keys += [line_key("running median", palette.INK)] if len(error) >= _MEDIAN_OF else []
    return figure(
        title,
        draw,
        keys=keys,
        note="Above 0 the step took less than foretold. What lies beyond ±100 % is drawn at the edge.",
        half=True,
    )


def _signed(share: float) -> str:
    return f"{share:+.0%}" if share else "0%"
