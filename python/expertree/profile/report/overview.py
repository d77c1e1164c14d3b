"""The top of the page: what the summary says, for the eye."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from expertree.profile.limits import Decoding, find_limit
from expertree.profile.report import palette
from expertree.profile.report.markup import Markup, element, join
from expertree.profile.report.scales import number
from expertree.profile.summary import ZONE_TEXT, head_lines, summary
from expertree.quantity_text import bytes_text, safe_text

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_LEAST_SHARE = 0.005


def overview(profile: Profile) -> Markup:
    d = Decoding.of(profile)
    parts = [element("h1", safe_text(profile.facts["model"]["name"], 80))]
    parts += [element("p", line, class_="facts") for line in head_lines(profile)]
    parts.append(_tiles(profile, d))
    if d.tokens:
        parts += [_limit(profile), _zones(d)]
    parts.append(_changes(profile))
    text = element("pre", summary(profile))
    parts.append(element("details", element("summary", "The same as text"), text))
    return element("header", join(*parts))


def _tiles(profile: Profile, d: Decoding) -> Markup:
    s = profile.steps
    chosen = s.decoding()
    tiles = []
    if d.tokens:
        tiles.append(("tokens/s", number(d.tokens_per_second), f"{d.tokens:,} tokens of answers"))
        tiles.append(("ms per token", number(d.seconds / d.tokens * 1e3), f"{d.seconds:,.1f} s in all"))
    if s.of_kind("speculate").any():
        drafts = s.of_kind("speculate") & (s.rows > 0)
        accepted = (
            f"{s.accepted[drafts].mean() if drafts.any() else 0:.2f} drafts accepted of {_mean(s.verified, drafts)}"
        )
        tiles.append(("tokens per step", number(d.tokens / max(1, d.steps)), accepted))
    touched = int(s.experts_touched[chosen].sum())
    if touched:
        tiles.append(("hit rate", f"{s.experts_hit[chosen].sum() / touched:.1%}", "experts in memory when needed"))
        disk = float(s.bytes_disk[chosen].sum()) / max(1, d.tokens)
        tiles.append(("MB per token from disk", number(disk * 1e-6), f"{d.bytes_disk * 1e-9:,.2f} GB of experts came"))
    if len(s):
        most = int(s.memory_bytes.sum(axis=1).max())
        tiles.append(("memory at most", bytes_text(most), "of the whole process"))
    return element("div", join(*(_tile(*tile) for tile in tiles)), class_="tiles")


def _mean(values: Any, mask: Any) -> str:
    return f"{values[mask].mean():.1f}" if mask.any() else "0"


def _tile(label: str, value: str, note: str) -> Markup:
    parts = [element("b", value), element("span", label), element("small", note) if note else ""]
    return element("div", join(*parts), class_="tile")


def _limit(profile: Profile) -> Markup:
    limit = (profile.facts.get("advice") or {}).get("limit") or find_limit(profile).to_json()
    share = min(1.0, max(0.0, float(limit["share"])))
    gauge = element("div", element("i", style=f"width:{share * 100:.0f}%"), class_="gauge", title=f"{share:.0%}")
    words = join(element("h2", "What holds it back"), element("p", limit["text"], "."))
    near = element("p", f"{share:.0%} of that limit", class_="note")
    return element("div", words, gauge if share else "", near if share else "", class_="box")


def _zones(d: Decoding) -> Markup:
    """Bars in the page's own boxes, so that they fit any width."""
    rows = []
    longest = max(d.zones.values())
    shown = sorted((item for item in d.zones.items() if item[1] >= _LEAST_SHARE * d.seconds), key=lambda z: -z[1])
    for name, seconds in shown:
        rows.append((ZONE_TEXT[name], seconds, palette.PHASE_OF_ZONE[name].style))
    rest = d.seconds - sum(seconds for _, seconds in shown)
    rows.append(("the rest", rest, palette.PHASE_OF_ZONE["other"].style))
    bars = [_bar(text, seconds, d, longest, style) for text, seconds, style in rows]
    return element("div", element("h2", "Where the time of a token goes"), join(*bars), class_="bars")


def _bar(label: str, seconds: float, d: Decoding, longest: float, style: palette.Style) -> Markup:
    filled = element("rect", width=f"{max(0.0, seconds / longest) * 100:.1f}%", height=14, fill=style.fill)
    svg = element("svg", filled, width="100%", height=14, aria_hidden="true")
    share = f"{seconds / d.seconds:.0%}"
    return element(
        "div",
        element("span", label),
        element("span", svg),
        element("span", share, class_="number"),
        element("span", f"{seconds / d.tokens * 1e3:,.2f} ms", class_="number"),
        class_="bar",
    )


def _changes(profile: Profile) -> Markup:
    advice = profile.facts.get("advice")
    title = element("h2", "Worth trying")
    if advice is None:
        return join(
            title, element("p", "Nothing was looked for: advise() of the profile was not called.", class_="missing")
        )
    if not advice["changes"]:
        return join(title, element("p", "Nothing that was looked at promises more than 3 %.", class_="missing"))
    return join(title, element("ol", join(*(_change(change) for change in advice["changes"])), class_="changes"))


def _change(change: dict[str, Any]) -> Markup:
    speed = f"{change['gain']:.2f} times as fast, {number(change['tokens_per_second'])} tokens/s"
    option = element("code", change["option"]) if change["option"] else element("em", "no option does it")
    why = element("p", f"{change['change']}: {change['why']}")
    return element("li", option, " ", element("b", speed), why)
