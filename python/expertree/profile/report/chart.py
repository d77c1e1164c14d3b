"""A plot with two axes as SVG, drawn for a given width in pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from expertree.profile.report import palette
from expertree.profile.report.markup import Markup, element, join
from expertree.profile.report.palette import Style
from expertree.profile.report.scales import Scale, number, round_up

FONT = 11  # pixels
_WIDE = {"%": 10.5, "+": 9.2, "−": 9.2, "-": 9.2, ",": 3.6, ".": 3.6}  # pixels, in the widest of the usual fonts
Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """label: with its unit. ticks: the only values to label; None finds round ones."""

    label: str
    low: float
    high: float
    whole: bool = False  # no ticks between whole numbers
    ticks: Sequence[float] | None = None
    format: Callable[[float], str] = number

    @classmethod
    def from_zero(cls, label: str, highest: float, whole: bool = False) -> Axis:
        return cls(label, 0.0, max(1.0, round_up(highest)) if whole else round_up(highest), whole)

    @classmethod
    def percent(cls, label: str) -> Axis:
        return cls(label, 0.0, 1.0, ticks=(0, 0.25, 0.5, 0.75, 1), format=lambda value: f"{value:.0%}")

    def values(self, scale: Scale, n: int) -> list[float]:
        if self.ticks is not None:
            return [value for value in self.ticks if self.low <= value <= self.high]
        found = scale.ticks(n)
        return [value for value in found if value == round(value)] if self.whole else found


class Chart:
    """Things are drawn in the axes' units, later ones over earlier ones; `svg` puts axes around them."""

    def __init__(self, width: float, height: float, x: Axis, y: Axis) -> None:
        self.width, self.height, self._x_axis, self._y_axis = width, height, x, y
        top, bottom = height - 34.0, 26.0
        self._y_ticks = y.values(Scale(y.low, y.high, top, bottom), max(2, int((top - bottom) / 36)))
        left = 10 + max((text_width(y.format(tick)) for tick in self._y_ticks), default=7.0)
        self.x = Scale(x.low, x.high, left, width - 4 - max(10.0, 0.5 * text_width(x.format(x.high))))
        self.y = Scale(y.low, y.high, top, bottom)
        self._x_ticks = self._spaced_ticks()
        self._parts: list[Markup] = []

    def _spaced_ticks(self) -> list[float]:
        axis, n = self._x_axis, max(2, int((self.x.end - self.x.begin) / 60))
        while True:
            ticks = axis.values(self.x, n)
            room = min((self.x(b) - self.x(a) for a, b in pairwise(ticks)), default=1e9)
            if room >= 7 + max((text_width(axis.format(tick)) for tick in ticks), default=0.0):
                return ticks
            if axis.ticks is not None:
                axis = self._x_axis = Axis(axis.label, axis.low, axis.high, axis.whole, ticks[::2], axis.format)
            elif n == 1:
                return ticks[:1]
            n -= 1

    def bar(self, x: tuple[float, float], y: tuple[float, float], style: Style, title: str = "") -> None:
        left, right = sorted((self.x(x[0]), self.x(x[1])))
        top, bottom = sorted((self.y(y[0]), self.y(y[1])))
        shape = {"x": left, "y": top, "width": max(0.4, right - left), "height": max(0.0, bottom - top)}
        self._add(element("rect", _title(title), fill=style.fill, class_="mark", **shape))

    def line(
        self, points: Sequence[Point], color: str = palette.INK, dash: str | None = None, width: float = 2
    ) -> None:
        path = "M" + " L".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        kind = None if color in palette.GUIDES else "mark"  # what only helps to read the plot is no data
        self._add(
            element("path", d=path, fill="none", stroke=color, stroke_width=width, stroke_dasharray=dash, class_=kind)
        )

    def area(self, x: Sequence[float], lower: Sequence[float], upper: Sequence[float], style: Style) -> None:
        there = [f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, upper, strict=True)]
        back = [f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, lower, strict=True)][::-1]
        path = "M" + " L".join(there + back) + "Z"
        self._add(element("path", _title(style.label), d=path, fill=style.fill, class_="mark"))

    def dot(
        self, x: float, y: float, radius: float = 3, title: str = "", color: str = palette.ACCENT, **more: str
    ) -> None:
        shape = {"cx": self.x(x), "cy": self.y(y), "r": radius}
        self._add(element("circle", _title(title), fill=color, class_="mark", **shape, **more))

    def whisker(self, x: float, low: float, high: float) -> None:
        path = f"M{self.x(x):.1f},{self.y(low):.1f} V{self.y(high):.1f}"
        self._add(element("path", d=path, stroke=palette.FAINT, stroke_width=1.2, class_="mark"))

    def words(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        self._add(label_at(self.x(x), self.y(y), words, anchor))

    def svg(self, label: str) -> Markup:
        """label: what it shows, for those who do not see it."""
        return drawing(self.width, self.height, label, join(self._grid(), *self._parts, self._labels()))

    def _add(self, part: Markup) -> None:
        self._parts.append(part)

    def _grid(self) -> Markup:
        left, right = self.x.begin, self.x.end
        lines = [f"M{left:.1f},{self.y(tick):.1f} H{right:.1f}" for tick in self._y_ticks]
        return element("path", d=" ".join(lines) or "M0,0", stroke=palette.GRID, stroke_width=1)

    def _labels(self) -> Markup:
        left, right, base = self.x.begin, self.x.end, self.y.begin
        parts = [element("path", d=f"M{left:.1f},{base:.1f} H{right:.1f}", stroke=palette.FAINT, stroke_width=1)]
        for tick in self._y_ticks:
            parts.append(label_at(left - 6, self.y(tick) + 4, self._y_axis.format(tick), "end"))
        ticks = "".join(f"M{self.x(tick):.1f},{base:.1f} v4" for tick in self._x_ticks)
        parts.append(element("path", d=ticks or "M0,0", stroke=palette.FAINT, stroke_width=1))
        for tick in self._x_ticks:
            parts.append(label_at(self.x(tick), base + 15, self._x_axis.format(tick), "middle"))
        parts.append(label_at(2, 13, self._y_axis.label, "start", "axis"))
        parts.append(label_at(right, self.height - 4, self._x_axis.label, "end", "axis"))
        return join(*parts)


def text_width(words: str) -> float:
    """Pixels that a label takes at most."""
    return sum(_WIDE.get(c, 7.0) for c in words)


def label_at(x: float, y: float, words: str, anchor: str, class_: str | None = None) -> Markup:
    return element("text", words, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def drawing(width: float, height: float, label: str, content: Markup) -> Markup:
    """An SVG that keeps its size where there is room, and shrinks where there is not."""
    return element(
        "svg",
        content,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        style=f"width:{width:.0f}px",
        role="img",
        aria_label=label,
    )


def _title(words: str) -> Markup:
    return element("title", words) if words else Markup("")
