"""What more memory would buy, and where it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from expertree.profile.budgets import SHARES, Budget, BudgetModel
from expertree.profile.report import palette
from expertree.profile.report.chart import Axis, Chart
from expertree.profile.report.figure import figure, key, line_key, missing, section
from expertree.profile.report.markup import Markup
from expertree.profile.report.scales import number

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_DENSE = "A dense model has no experts: all of its weights are read for every token."
_NO_TOKEN = "No token was decoded, so there is nothing to replay."
_BEST = "belady"  # the policy that knows the future


def memory(profile: Profile) -> Markup:
    words = (
        "The run's own routing, replayed through the cache with other budgets: "
        "how fast experts come back decides what memory for them buys."
    )
    if not profile.facts["model"]["n_moe_layers"]:
        return section("Memory", "", missing("Hit rate against budget", _DENSE, half=True), _purposes(profile))
    figures = [_reuse(profile)]
    if profile.steps.decoding().any():
        now = profile.facts["budget"]["policy"] or "lru"
        replayed = BudgetModel(profile)
        curve = _curve(profile)
        # What was in memory at the beginning differs by budget, so the best is shown where it is the best.
        best = [replayed.at_share(share, _BEST) for share in SHARES] if now != _BEST else []
        figures += [_hits(profile, curve, best, now), _speed(profile, curve), _disk(profile, curve)]
    else:
        figures.append(missing("Hit rate against budget", _NO_TOKEN, half=True))
    return section("Memory", words, *figures, _purposes(profile))


def _curve(profile: Profile) -> list[Budget]:
    advice = profile.facts.get("advice")
    return [Budget(**budget) for budget in advice["budgets"]] if advice else profile.budget_curve()


def _reuse(profile: Profile) -> Markup:
    title = "Reuse distance"
    distances = profile.reuse_distances()
    again = distances[distances >= 0]
    if not again.size:
        return missing(title, "No expert was used twice.", half=True)
    n_experts = profile.facts["model"]["n_experts"]
    at = np.arange(n_experts)
    within = np.searchsorted(np.sort(again), at, side="right") / len(distances)
    slots = sum(profile.facts["budget"]["slots"]) / max(1, profile.facts["model"]["n_moe_layers"])

    def draw(width: float) -> Markup:
        x = Axis("other experts of the layer used since", 0, max(1, n_experts - 1), whole=True)
        chart = Chart(width, 260, x, Axis.percent("share of uses, cumulative"))
        if 0 < slots < n_experts:
            chart.line([(slots, 0.0), (slots, 1.0)], palette.WARM, "5 4", 1.5)
        chart.line(list(zip(at.tolist(), within.tolist(), strict=True)), palette.ACCENT_DARK)
        return chart.svg(title)

    first = f"{np.mean(distances < 0):.0%} of the uses are an expert's first"
    note = f"{first}: hits only where it was read before it was needed."
    keys = [line_key("back within so many", palette.ACCENT_DARK)]
    if 0 < slots < n_experts:
        keys.append(line_key(f"slots of a layer now, {slots:.0f}", palette.WARM, "5 4"))
    return figure(title, draw, note=note, keys=keys, half=True)


def _unit(most: float) -> tuple[str, int]:
    """The unit for an axis up to so many bytes."""
    return ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)


def _hits(profile: Profile, curve: list[Budget], best: list[Budget], policy: str) -> Markup:
    title = "Hit rate against budget"

    unit, size = _unit(max(b.bytes for b in curve))
    axis = Axis.from_zero(f"{unit} for experts", max(b.bytes for b in curve) / size)

    def draw(width: float) -> Markup:
        chart = Chart(width, 260, axis, Axis.percent("uses found in memory"))
        _mark_now(profile, chart, size)
        if best:
            chart.line([(b.bytes / size, b.hit_rate) for b in best], palette.FAINT, "2 3", 1.5)
        chart.line([(b.bytes / size, b.hit_rate) for b in curve], palette.ACCENT_DARK)
        for b in curve:
            chart.dot(b.bytes / size, b.hit_rate, 3, f"{b.share:.0%} of the experts: {b.hit_rate:.1%}")
        return chart.svg(title)

    keys = [line_key(policy, palette.ACCENT_DARK)]
    keys += [line_key("a policy that knows the future", palette.FAINT, "2 3")] if best else []
    return figure(title, draw, keys=[*keys, _now_key()], half=True)


def _speed(profile: Profile, curve: list[Budget]) -> Markup:
    title = "Speed against budget"
    known = [(b.bytes, b.tokens_per_second) for b in curve if b.tokens_per_second is not None]
    if not known:
        reason = "Nothing was read from disk in this run, so how fast that goes is unknown."
        return missing(title, reason, half=True)

    unit, size = _unit(max(b.bytes for b in curve))
    axis = Axis.from_zero(f"{unit} for experts", max(b.bytes for b in curve) / size)

    def draw(width: float) -> Markup:
        chart = Chart(width, 260, axis, Axis.from_zero("tokens/s, predicted", max(y for _, y in known)))
        _mark_now(profile, chart, size)
        points = [(x / size, y) for x, y in known]
        chart.line(points, palette.ACCENT_DARK)
        for x, y in points:
            chart.dot(x, y, 3, f"{number(x)} {unit}: {number(y)} tokens/s")
        return chart.svg(title)

    return figure(title, draw, keys=[line_key("predicted", palette.ACCENT_DARK), _now_key()], half=True)


def _disk(profile: Profile, curve: list[Budget]) -> Markup:
    title = "Disk reads against budget"
    highest = max(b.bytes_per_token for b in curve) * 1e-6
    if highest == 0:
        return missing(title, "All that the run used was in memory whatever the budget.", half=True)

    unit, size = _unit(max(b.bytes for b in curve))
    axis = Axis.from_zero(f"{unit} for experts", max(b.bytes for b in curve) / size)

    def draw(width: float) -> Markup:
        chart = Chart(width, 260, axis, Axis.from_zero("MB per token", highest))
        _mark_now(profile, chart, size)
        chart.line([(b.bytes / size, b.bytes_per_token * 1e-6) for b in curve], palette.ACCENT_DARK)
        for b in curve:
            chart.dot(b.bytes / size, b.bytes_per_token * 1e-6, 3, f"{b.bytes_per_token * 1e-6:,.1f} MB per token")
        return chart.svg(title)

    return figure(title, draw, keys=[line_key("predicted", palette.ACCENT_DARK), _now_key()], half=True)


def _mark_now(profile: Profile, chart: Chart, size: int) -> None:
    now = profile.facts["budget"]["bytes"] / size
    chart.line([(now, chart.y.low), (now, chart.y.high)], palette.WARM, "5 4", 1.5)


def _now_key() -> Markup:
    return line_key("this run", palette.WARM, "5 4")


def _purposes(profile: Profile) -> Markup:
    title = "Memory by purpose, by step"
    s = profile.steps
    unit, size = _unit(float(s.memory_bytes.sum(axis=1).max(initial=0)))
    sizes = s.memory_bytes / size
    if len(s) < 2 or not sizes.any():
        return missing(title, "Fewer than two steps were run.")

    def draw(width: float) -> Markup:
        ids = np.unique(np.linspace(0, len(s) - 1, min(len(s), int(width / 2))).astype(int))
        x = Axis("step, prompts included", 1, len(s), whole=True)
        chart = Chart(width, 220, x, Axis.from_zero(unit, sizes.sum(axis=1).max()))
        top = np.zeros(len(ids))
        for style, column in zip(palette.MEMORY, sizes[ids].T, strict=True):
            chart.area((ids + 1).tolist(), top.tolist(), (top + column).tolist(), style)
            top = top + column
        return chart.svg(title)

    return figure(title, draw, keys=[key(style) for style in palette.MEMORY])
