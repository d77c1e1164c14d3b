"""How zones, states and amounts look. In grey each neighbour differs in lightness or has another pattern."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expertree.profile.report.markup import Markup, element, join

INK, FAINT, GRID = "#1f2933", "#52606d", "#dde3e9"
ACCENT, ACCENT_DARK, LIGHT = "#2f6f9f", "#173f5f", "#a9cbe2"
WARM = "#d2691e"
GUIDES = (FAINT, WARM)  # lines to compare with


@dataclass(frozen=True)
class Style:
    """A filled area. pattern: "" or one of _PATTERNS, drawn over the colour."""

    name: str
    label: str
    color: str
    pattern: str = ""

    @property
    def fill(self) -> str:
        return f"url(#p-{self.name})" if self.pattern else self.color


@dataclass(frozen=True)
class Phase:
    """Zones that the plots show as one."""

    zones: tuple[str, ...]
    style: Style


# In the order in which they are stacked: light next to dark.
PHASES = (
    Phase(("wait",), Style("wait", "waiting for experts", "#b4451f", "rising")),
    Phase(("experts",), Style("experts", "running experts", "#8fc1e3")),
    Phase(("attention",), Style("attention", "attention", "#2b5d8a")),
    Phase(("dense",), Style("dense", "dense and shared layers", "#d8e2a8", "dots")),
    Phase(("router", "predict"), Style("router", "routing and guessing experts", "#5f7f3b")),
    Phase(("head",), Style("head", "output head", "#f0d58c")),
    Phase(("draft", "select"), Style("draft", "drafting and selecting", "#7a4f8f", "falling")),
    Phase(("sample", "commit", "other"), Style("rest", "sampling, keeping, the rest", "#e3e3e3")),
    Phase(("python",), Style("python", "Python, between the steps", "#6b6b6b", "level")),
)
PHASE_OF_ZONE = {zone: phase for phase in PHASES for zone in phase.zones}

HIT = Style("hit", "in memory", "#a9cbe2")
LATE = Style("late", "being read", "#4d86b0", "dots")
MISS = Style("miss", "on disk", "#8f3a17", "rising")

DEMAND = Style("demand", "needed now", "#b4451f", "rising")
HINT = Style("hint", "guessed", "#7fa6c4")
BACKGROUND = Style("background", "to fill memory", "#dcdcdc")
READS = (DEMAND, HINT, BACKGROUND)  # as READ_REASONS

DRAFTED = Style("drafted", "drafted", "#dbe7f0")
VERIFIED = Style("verified", "verified", "#7fa6c4")
ACCEPTED = Style("accepted", "accepted", "#173f5f")

MEMORY = (  # as PURPOSES
    Style("m-weights", "weights besides experts", "#2b5d8a"),
    Style("m-experts", "experts", "#8fc1e3"),
    Style("m-kv", "KV cache", "#f0d58c", "dots"),
    Style("m-other", "the rest of the process", "#9a9a9a"),
)

_PATTERNS = {
    "rising": Markup('<path d="M-1,7 L7,-1 M-1,1 L1,-1 M5,7 L7,5" stroke="#fff" stroke-width="1.3" opacity=".75"/>'),
    "falling": Markup('<path d="M-1,-1 L7,7 M5,-1 L7,1 M-1,5 L1,7" stroke="#fff" stroke-width="1.3" opacity=".75"/>'),
    "level": Markup('<path d="M0,3 H6" stroke="#fff" stroke-width="1.3" opacity=".7"/>'),
    "dots": Markup('<circle cx="3" cy="3" r="1.1" fill="#1f2933" opacity=".55"/>'),
}


def pattern_definitions() -> Markup:
    """An invisible drawing that the page holds once."""
    styles = [*(phase.style for phase in PHASES), HIT, LATE, MISS, *READS, DRAFTED, VERIFIED, ACCEPTED, *MEMORY]
    patterns = [
        element(
            "pattern",
            element("rect", width=6, height=6, fill=style.color),
            _PATTERNS[style.pattern],
            id=f"p-{style.name}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        )
        for style in styles
        if style.pattern
    ]
    return element("svg", element("defs", join(*patterns)), class_="definitions", width=0, height=0, aria_hidden="true")


_RAMP = np.array([[255, 255, 255], [214, 228, 239], [143, 193, 227], [64, 127, 175], [23, 63, 95], [8, 22, 36]])


def shades(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """(..., 3) of values from 0 (white) to 1 (nearly black); lightness falls all the way. nan is grey."""
    at = np.linspace(0.0, 1.0, len(_RAMP))
    known = np.nan_to_num(np.clip(values, 0.0, 1.0))
    colors = np.stack([np.interp(known, at, _RAMP[:, channel]) for channel in range(3)], axis=-1)
    colors[np.isnan(values)] = (205, 205, 205)
    return colors.astype(np.uint8)
