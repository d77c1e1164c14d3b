"""A profile's plots as PNG files. Needs matplotlib (`pip install expertree[plots]`); the HTML report does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree.errors import DeviceError
from expertree.profile.report import palette
from expertree.profile.report.step_times import by_phase, shown_phases

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_HATCHES = {"rising": "///", "falling": "\\\\\\", "level": "---", "dots": "...", "": ""}
_GIB = 2**30


def write_plots(profile: Profile, folder: Path) -> list[Path]:
    """time.png: ms per token by step and phase. experts.png: use, residency and misses by layer and expert. budget.png:
    hit rate and speed by memory for experts. drafts.png: C(k), acceptance by depth and calibration. Those without data
    are left out.

    Raises:
        UnsupportedError: no matplotlib.
        DeviceError: the disk does not take them.
    """
    from expertree.comparison.plots import require_matplotlib

    pyplot = require_matplotlib()
    written = []
    for name, draw in (("time", _time), ("experts", _experts), ("budget", _budget), ("drafts", _drafts)):
        figure = draw(profile, pyplot)
        if figure is None:
            continue
        figure.tight_layout()
        path = folder / f"{name}.png"
        try:
            figure.savefig(path, dpi=120)
        except OSError as error:
            raise DeviceError(f"{path}: the plot cannot be written: {error.strerror}") from error
        finally:
            pyplot.close(figure)
        written.append(path)
    return written


def _time(profile: Profile, pyplot: Any) -> Any:
    s = profile.steps
    chosen = np.flatnonzero(s.decoding() & (s.tokens > 0))
    if not chosen.size:
        return None
    heights = by_phase(s.zone_seconds[chosen]) / s.tokens[chosen, None] * 1e3
    figure, axis = pyplot.subplots(figsize=(10, 4.5))
    base = np.zeros(len(chosen))
    for i in shown_phases(heights):
        style = palette.PHASES[i].style
        axis.bar(
            np.arange(1, len(chosen) + 1),
            heights[:, i],
            1.0,
            base,
            color=style.color,
            hatch=_HATCHES[style.pattern],
            edgecolor="white",
            linewidth=0,
            label=style.label,
        )
        base += heights[:, i]
    axis.set(xlabel="decoding step", ylabel="ms per token", xlim=(0.5, len(chosen) + 0.5))
    axis.legend(fontsize="small", ncols=2)
    return figure


def _experts(profile: Profile, pyplot: Any) -> Any:
    e = profile.experts
    if not e.uses.any():
        return None
    figure, axes = pyplot.subplots(3, 1, figsize=(10, 9))
    maps = (("passes that needed it", e.uses), ("share of steps in memory", e.resident), ("misses", e.misses + e.late))
    for axis, (label, values) in zip(axes, maps, strict=True):
        image = axis.imshow(values, aspect="auto", interpolation="nearest", cmap="Greys")
        axis.set(xlabel="expert", ylabel="MoE layer")
        figure.colorbar(image, ax=axis, label=label)
    return figure


def _budget(profile: Profile, pyplot: Any) -> Any:
    curve = profile.budget_curve()
    if not curve:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    sizes = [b.bytes / _GIB for b in curve]
    left.plot(sizes, [100 * b.hit_rate for b in curve], marker="o", color="black")
    left.set(ylabel="uses found in memory, %", ylim=(0, 105))
    known = [(b.bytes / _GIB, b.tokens_per_second) for b in curve if b.tokens_per_second is not None]
    right.plot([x for x, _ in known], [y for _, y in known], marker="o", color="black")
    right.set(ylabel="tokens/s, predicted", ylim=(0, None))
    for axis in (left, right):
        axis.axvline(profile.facts["budget"]["bytes"] / _GIB, linestyle="--", color="grey", label="this run")
        axis.set(xlabel="GiB for experts", xlim=(0, None))
        axis.legend()
    return figure


def _drafts(profile: Profile, pyplot: Any) -> Any:
    s, nodes = profile.steps, profile.nodes
    if not nodes.verified.any():
        return None
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4))
    chosen = s.decoding() & (s.measured > 0)
    left.scatter(s.rows[chosen], s.measured[chosen] * 1e3, s=6, alpha=0.4, color="black")
    left.set(xlabel="rows of a step, k", ylabel="ms per step, C(k)", ylim=(0, None))
    depths = np.arange(1, s.drafted_by_depth.shape[1] + 1)
    columns = (s.drafted_by_depth, s.verified_by_depth, s.accepted_by_depth)
    n = max(1, int((s.drafted > 0).sum()))
    for style, column in zip((palette.DRAFTED, palette.VERIFIED, palette.ACCEPTED), columns, strict=True):
        middle.bar(depths, column.sum(axis=0) / n, color=style.color, edgecolor="black", label=style.label)
    middle.set(xlabel="depth below the last token", ylabel="tokens per drafting step")
    middle.legend()
    score, accepted = nodes.score[nodes.verified], nodes.accepted[nodes.verified]
    which = np.minimum((score * 10).astype(int), 9)
    there = np.unique(which)
    right.plot([0, 1], [0, 1], linestyle=":", color="grey")
    right.plot(
        [score[which == b].mean() for b in there],
        [accepted[which == b].mean() for b in there],
        marker="o",
        color="black",
    )
    right.set(xlabel="score: probability foretold", ylabel="share accepted", xlim=(0, 1), ylim=(0, 1))
    return figure
