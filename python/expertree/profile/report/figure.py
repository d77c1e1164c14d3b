"""A titled plot of the page, drawn once for wide screens and paper and once for phones; or the reason why it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from expertree.profile.report.markup import Markup, element, join
from expertree.profile.report.palette import Style

WIDE, HALF, NARROW = 912, 444, 356  # pixels
Draw = Callable[[float], Markup]


def figure(title: str, draw: Draw, *, note: str = "", keys: Sequence[object] = (), half: bool = False) -> Markup:
    """note: a sentence below. keys: of the legend, from `key` or `line_key`. half: two of them stand side by side."""
    wide = HALF if half else WIDE
    parts = [
        element("h3", title),
        element("div", join(*keys), class_="keys") if keys else "",
        element("div", draw(wide), class_="wide plot"),
        element("div", draw(NARROW), class_="narrow plot"),
        element("p", note, class_="note") if note else "",
    ]
    return element("figure", join(*parts), class_="half" if half else None)


def missing(title: str, reason: str, half: bool = False) -> Markup:
    """In place of a plot without data."""
    return element(
        "figure", element("h3", title), element("p", reason, class_="missing"), class_="half" if half else None
    )


def key(style: Style, label: str = "") -> Markup:
    """An entry of a legend."""
    swatch = element("rect", x=0.5, y=0.5, width=13, height=11, fill=style.fill, stroke="#52606d", stroke_width=0.6)
    return _key(swatch, label or style.label)


def line_key(label: str, color: str, dash: str | None = None) -> Markup:
    return _key(element("path", d="M0,6 H14", stroke=color, stroke_width=2, stroke_dasharray=dash), label)


def dot_key(label: str, color: str, **more: str) -> Markup:
    return _key(element("circle", cx=7, cy=6, r=4, fill=color, **more), label)


def _key(drawn: Markup, label: str) -> Markup:
    return element("span", element("svg", drawn, width=14, height=12, aria_hidden="true"), label, class_="key")


def section(title: str, words: str, *figures: Markup) -> Markup:
    return element(
        "section", element("h2", title), element("p", words), element("div", join(*figures), class_="figures")
    )
