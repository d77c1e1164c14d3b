"""A profile on one screen, for somebody who has not seen the code."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from expertree.profile.limits import Decoding, find_limit
from expertree.quantity_text import bytes_text, safe_text

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

WIDTH = 100
_BAR = 30
_LEAST_SHARE = 0.01  # zones below it are one line together
ZONE_TEXT = {
    "draft": "drafting tokens",
    "predict": "guessing which experts come next",
    "select": "choosing which drafts to verify",
    "attention": "attention",
    "router": "choosing experts (router)",
    "experts": "running experts",
    "dense": "dense and shared layers",
    "head": "output head",
    "other": "everything else in the core",
    "wait": "waiting for experts from disk",
    "sample": "sampling",
    "commit": "keeping what was accepted",
    "python": "Python, between the steps",
}


def summary(profile: Profile) -> str:
    """The speed, where the time went, what holds it back, and what to try."""
    d = Decoding.of(profile)
    parts = ["\n".join(_wrapped(line) for line in head_lines(profile)), _speed(profile, d)]
    if d.tokens:
        parts += [_zones(d), _limit(profile, d)]
    advice = profile.facts.get("advice")
    if advice is not None:
        parts.append(_changes(advice))
    return "\n\n".join(part for part in parts if part)


def head_lines(profile: Profile) -> list[str]:
    """What was run, on what, with how much memory for experts."""
    model, machine, budget = (profile.facts[name] for name in ("model", "machine", "budget"))
    lines = [f"{safe_text(model['name'])}: {model['arch']}, {model['n_layers']} layers"]
    if model["n_moe_layers"]:
        lines[0] += (
            f", {model['n_experts']} experts in each of {model['n_moe_layers']}, "
            f"{model['n_experts_used']} used per token"
        )
    lines[0] += f"; {machine['threads']} of {machine['cores']} cores, {machine['isa']}"
    if budget["all_bytes"]:
        share = budget["bytes"] / budget["all_bytes"]
        lines.append(
            f"expert memory: {bytes_text(budget['bytes'])} of the {bytes_text(budget['all_bytes'])} that all would "
            f"take ({share:.0%})" + (f"; policy {budget['policy']}" if share < 1 else "")
        )
    return lines


def _speed(profile: Profile, d: Decoding) -> str:
    s = profile.steps
    prefill = s.of_kind("prefill")
    lines = []
    if prefill.any() and s.wall[prefill].sum() > 0:
        n, seconds = int(s.tokens[prefill].sum()), float(s.wall[prefill].sum())
        lines.append(f"prompts  {n / seconds:10.2f} tokens/s   ({n} tokens)")
    if not d.tokens:
        return "\n".join([*lines, "no token was decoded"])
    lines.append(
        f"answers  {d.tokens_per_second:10.2f} tokens/s   ({d.tokens} tokens, {d.seconds / d.tokens * 1e3:.1f} ms each)"
    )
    drafts = s.of_kind("speculate")
    if drafts.any():
        lines.append(
            f"drafts   {d.tokens / d.steps:10.2f} tokens a step, of {s.drafted[drafts].mean():.1f} drafted, "
            f"{s.verified[drafts].mean():.1f} verified, {s.accepted[drafts].mean():.2f} accepted"
        )
    return "\n".join(lines)


def _zones(d: Decoding) -> str:
    rows = sorted(d.zones.items(), key=lambda zone: -zone[1])
    shown = [(name, seconds) for name, seconds in rows if seconds >= _LEAST_SHARE * d.seconds]
    rest = d.seconds - sum(seconds for _, seconds in shown)
    lines = ["Where the time of an answer's token goes"]
    for text, seconds in [(ZONE_TEXT[name], seconds) for name, seconds in shown] + [("the rest", rest)]:
        share = seconds / d.seconds
        bar = "#" * round(share * _BAR)
        lines.append(f"  {text:34}{bar:{_BAR}} {share:5.0%} {seconds / d.tokens * 1e3:10.2f} ms")
    return "\n".join(lines)


def _limit(profile: Profile, d: Decoding) -> str:
    limit = (profile.facts.get("advice") or {}).get("limit") or find_limit(profile).to_json()
    lines = [f"What holds it back: {limit['text']}."]
    s = profile.steps
    chosen = s.decoding()
    touched = int(s.experts_touched[chosen].sum())
    if touched:
        hits = int(s.experts_hit[chosen].sum()) / touched
        missed = int(s.experts_missed[chosen].sum()) / touched
        line = f"A token needs {touched / d.tokens:.0f} experts; {hits:.0%} were in memory when it did"
        if hits < 1:
            line += f", {missed:.0%} were on disk, the others on their way"
        lines.append(line + ".")
    return "\n".join(_wrapped(line) for line in lines)


def _changes(advice: dict[str, Any]) -> str:
    if not advice["changes"]:
        return "Worth trying: nothing that was looked at promises more than 3 %."
    lines = ["Worth trying, with the speed that each should give"]
    for number, change in enumerate(advice["changes"], 1):
        option = change["option"] or "(no option does it)"
        speed = f"{change['gain']:.2f} times, {change['tokens_per_second']:.2f} tokens/s"
        lines.append(f"  {number}. {option:40} {speed}")
        lines.append(
            textwrap.fill(
                f"{change['change']}: {change['why']}", WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5
            )
        )
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")
