"""What verifying more rows costs and brings: U(k), C(k), the chosen k, acceptance, and how true the scores are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from expertree.profile.report import palette
from expertree.profile.report.chart import Axis, Chart
from expertree.profile.report.dots import thinned
from expertree.profile.report.figure import dot_key, figure, key, line_key, missing, section
from expertree.profile.report.markup import Markup
from expertree.profile.report.scales import counted
from expertree.profile.tables import Bools, Doubles, Longs

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_NO_DRAFTS = "No drafts: every step ran the last token alone. Profile with --draft auto to see this."
_DENSE = "A dense model has no experts."
_BINS = 10  # of scores


def drafts(profile: Profile) -> Markup:
    words = (
        "A step runs k rows: the last token, and the drafted ones that were selected. More rows need more experts, "
        "U(k), and take longer, C(k); they pay when enough of them are accepted."
    )
    return section(
        "Drafting",
        words,
        _union(profile),
        _cost(profile),
        _chosen(profile),
        _acceptance(profile),
        _calibration(profile),
    )


def _drafting(profile: Profile) -> Bools:
    s = profile.steps
    mask: Bools = s.of_kind("speculate") & (s.rows > 0)
    return mask


def _reason(profile: Profile) -> str:
    """Why nothing can be said of drafts."""
    return _NO_DRAFTS if profile.steps.decoding().any() else "No token was decoded: the run ended with its prompts."


def _most_rows(profile: Profile) -> int:
    s = profile.steps
    return int(s.rows[s.decoding()].max(initial=0))


def _union(profile: Profile) -> Markup:
    title = "U(k): experts that k rows need"
    if not profile.facts["model"]["n_moe_layers"]:
        return missing(title, _DENSE, half=True)
    most = _most_rows(profile)
    if most < 2:
        return missing(title, _reason(profile), half=True)
    rows = np.arange(1, most + 1)
    found = np.array(profile.union_curve(rows.tolist()))
    known = np.isfinite(found)
    used = profile.facts["model"]["n_experts_used"]

    def draw(width: float) -> Markup:
        chart = Chart(
            width, 260, Axis("rows of a step, k", 1, most, whole=True), _rising("experts per layer", found[known])
        )
        apart = [(k, k * used) for k in rows.tolist() if k * used <= chart.y.high]
        if len(apart) > 1:
            chart.line(apart, palette.FAINT, "2 3", 1.5)
        chart.line(list(zip(rows[known].tolist(), found[known].tolist(), strict=True)), palette.ACCENT_DARK)
        for k, u in zip(rows[known].tolist(), found[known].tolist(), strict=True):
            chart.dot(k, u, 3, f"{k} rows: {u:.1f} experts per layer")
        return chart.svg(title)

    keys = [line_key("measured", palette.ACCENT_DARK), line_key("if rows shared none", palette.FAINT, "2 3")]
    return figure(title, draw, keys=keys, half=True)


def _rising(label: str, values: npt.ArrayLike) -> Axis:
    return Axis.from_zero(label, float(np.max(values)))


def _cost(profile: Profile) -> Markup:
    title = "C(k): time of a step of k rows"
    s = profile.steps
    chosen = np.flatnonzero(s.decoding() & (s.measured > 0))
    most = _most_rows(profile)
    if not chosen.size or most < 2:
        return missing(title, _reason(profile), half=True)
    rows, ms = s.rows[chosen], s.measured[chosen] * 1e3
    counts = np.unique(rows)
    medians = [float(np.median(ms[rows == k])) for k in counts]
    highest = max(float(np.percentile(ms, 98)), *medians)
    cut = int((ms > highest * 1.05).sum())

    def draw(width: float) -> Markup:
        chart = Chart(
            width, 260, Axis("rows of a step, k", 0.5, most + 0.5, whole=True), _rising("ms per step", highest * 1.05)
        )
        for k, y in thinned(rows, ms):
            if y <= chart.y.high:
                chart.dot(k, y, 2, f"{k:.0f} rows: {y:.2f} ms", palette.ACCENT, opacity=".35")
        chart.line(list(zip(counts.tolist(), medians, strict=True)), palette.INK)
        return chart.svg(title)

    keys = [line_key("median", palette.INK), dot_key("a step", palette.ACCENT, opacity=".45")]
    note = f"Above the plot: {counted(cut, 'slower step')}." if cut else ""
    return figure(title, draw, keys=keys, note=note, half=True)


def _chosen(profile: Profile) -> Markup:
    title = "The chosen k, by step"
    s = profile.steps
    chosen = np.flatnonzero(_drafting(profile))
    if not chosen.size:
        return missing(title, _reason(profile))
    counts = np.stack([s.tokens, s.rows, 1 + s.drafted], axis=1)[chosen].astype(float)
    styles = (palette.ACCEPTED, palette.VERIFIED, palette.DRAFTED)
    labels = ("tokens that the step gave", "rows run, k", "rows that were drafted")

    def draw(width: float) -> Markup:
        bins = np.array_split(np.arange(len(chosen)), min(len(chosen), int(width / 5)))
        means = np.stack([counts[ids].mean(axis=0) for ids in bins])
        x = Axis("drafting step", 0.5, len(chosen) + 0.5, whole=True)
        chart = Chart(width, 220, x, Axis.from_zero("rows, one of them the last token", means.max(), whole=True))
        for ids, (tokens, rows, drafted) in zip(bins, means.tolist(), strict=True):
            at = (ids[0] + 0.5 + 0.08 * len(ids), ids[-1] + 1.5 - 0.08 * len(ids))
            words = f"step {ids[0] + 1}: {drafted:.1f} drafted, {rows:.1f} run, {tokens:.1f} tokens"
            for low, high, style in ((rows, drafted, styles[2]), (tokens, rows, styles[1]), (0.0, tokens, styles[0])):
                if high > low:
                    chart.bar(at, (low, high), style, words)
        return chart.svg(title)

    return figure(title, draw, keys=[key(style, label) for style, label in zip(styles, labels, strict=True)])


def _acceptance(profile: Profile) -> Markup:
    title = "Acceptance by depth"
    s = profile.steps
    columns = (s.drafted_by_depth, s.verified_by_depth, s.accepted_by_depth)
    drafted, verified, accepted = (column.sum(axis=0) for column in columns)
    if not drafted.any():
        return missing(title, _reason(profile), half=True)
    n = int((s.of_kind("speculate") & (s.drafted > 0)).sum())
    depth = int(np.flatnonzero(drafted)[-1]) + 1

    def draw(width: float) -> Markup:
        per_step = [column[:depth] / n for column in (drafted, verified, accepted)]
        x = Axis("depth below the last token", 0.5, depth + 0.5, whole=True)
        chart = Chart(width, 260, x, Axis.from_zero("drafted tokens per step", max(float(c.max()) for c in per_step)))
        for i in range(depth):
            words = f"depth {i + 1}: {drafted[i]:,} drafted, {verified[i]:,} verified, {accepted[i]:,} accepted"
            for column, style, offset in zip(
                per_step, (palette.DRAFTED, palette.VERIFIED, palette.ACCEPTED), (-0.4, -0.13, 0.14), strict=True
            ):
                if column[i] > 0:
                    chart.bar((i + 1 + offset, i + 1 + offset + 0.25), (0.0, float(column[i])), style, words)
        return chart.svg(title)

    rates = [f"depth {i + 1} {accepted[i] / n:.0%}" for i in range(min(depth, 8))]
    return figure(
        title,
        draw,
        keys=[key(palette.DRAFTED), key(palette.VERIFIED), key(palette.ACCEPTED)],
        note="Steps that kept a token so deep: " + ", ".join(rates) + ".",
        half=True,
    )


def _calibration(profile: Profile) -> Markup:
    title = "Calibration of the drafter's scores"
    nodes = profile.nodes
    if not nodes.verified.any():
        return missing(title, _reason(profile), half=True)
    score = np.clip(nodes.score[nodes.verified].astype(float), 0.0, 1.0)
    accepted = nodes.accepted[nodes.verified]
    which = np.minimum((score * _BINS).astype(int), _BINS - 1)
    n = np.bincount(which, minlength=_BINS)
    error = float(np.sum(n * np.abs(_means(which, score, n) - _means(which, accepted, n))) / n.sum())

    def draw(width: float) -> Markup:
        chart = Chart(width, 260, Axis.percent("score: probability foretold"), Axis.percent("share accepted"))
        chart.line([(0, 0), (1, 1)], palette.FAINT, "2 3", 1.5)
        for b in np.flatnonzero(n).tolist():
            x, y = float(score[which == b].mean()), float(accepted[which == b].mean())
            low, high = _interval(y, int(n[b]))
            chart.whisker(x, low, high)
            radius = 2.5 + 5.5 * float(np.sqrt(n[b] / n.max()))
            chart.dot(x, y, radius, f"foretold {x:.0%}, came {y:.0%} of {n[b]:,}", palette.ACCENT)
        return chart.svg(title)

    keys = [
        dot_key("verified tokens, by score", palette.ACCENT),
        line_key("95 % interval", palette.FAINT),
        line_key("as foretold", palette.FAINT, "2 3"),
    ]
    note = (
        f"Mean difference {error:.1%} over {len(score):,} verified tokens. Tokens that were not verified do not count."
    )
    return figure(title, draw, keys=keys, note=note, half=True)


def _means(which: Longs, values: npt.ArrayLike, n: Longs) -> Doubles:
    """(_BINS,) by bin."""
    means: Doubles = np.bincount(which, np.asarray(values, float), _BINS) / np.maximum(1, n)
    return means


def _interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's, of a share of n at 95 % (E. B. Wilson, 1927)."""
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)
