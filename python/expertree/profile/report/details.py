"""What was run, at the bottom of the page."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from expertree.profile.report.figure import section
from expertree.profile.report.markup import Markup, element, join
from expertree.profile.report.scales import number
from expertree.quantity_text import bytes_text

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_PATH = re.compile(r"(\w+:)?((?:[A-Za-z]:)?[/\\~].*)", re.DOTALL)  # from the root, a drafter's name before it
_MOST_SESSIONS = 40
_LONGEST = 300  # characters of a value


def details(profile: Profile) -> Markup:
    facts = profile.facts
    sessions = facts["sessions"][:_MOST_SESSIONS]
    rows = [
        [_shown(s[name]) for name in ("label", "category", "draft", "select", "predict", "n_ctx")] for s in sessions
    ]
    names = ("session", "category", "drafter", "selector", "predictor", "context")
    parts = [element("h3", "Options"), _pairs(facts["options"])]
    parts += [element("h3", "Model and machine"), _pairs({**_model(facts), **_machine(facts["machine"])})]
    parts += [element("h3", "Sessions"), _table(names, rows)]
    if len(facts["sessions"]) > len(sessions):
        parts.append(element("p", f"and {len(facts['sessions']) - len(sessions)} more"))
    return section(
        "The run",
        f"{len(profile.steps):,} steps in {facts['totals']['wall_seconds']:,.1f} s.",
        element("div", join(*parts)),
    )


def _model(facts: dict[str, Any]) -> dict[str, Any]:
    model = facts["model"]
    sizes = model["expert_bytes"]
    shown: dict[str, Any] = {"file": model["path"], "weights besides experts": bytes_text(model["other_bytes"])}
    if sizes:
        low, high = bytes_text(min(sizes)), bytes_text(max(sizes))
        shown["an expert in the file"] = low if low == high else f"{low} to {high}"
    return shown


_UNITS = {
    "read_gb_per_s": ("memory is read at", "GB/s"),
    "int8_gops": ("int8 arithmetic", "GOPS"),
    "disk_gb_per_s": ("disk", "GB/s"),
}


def _machine(machine: dict[str, Any]) -> dict[str, Any]:
    """With units in the values; limits that were not measured are left out."""
    shown = {name: value for name, value in machine.items() if name not in _UNITS}
    measured = {name: (label, unit) for name, (label, unit) in _UNITS.items() if machine.get(name)}
    return {**shown, **{label: f"{number(machine[name])} {unit}" for name, (label, unit) in measured.items()}}


def _pairs(values: dict[str, Any]) -> Markup:
    rows = [[name.replace("_", " "), _shown(value)] for name, value in values.items()]
    return _table((), rows) if rows else element("p", "None were recorded.", class_="note")


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    words = _without_folders(value) if isinstance(value, str) else json.dumps(value)
    return words if len(words) <= _LONGEST else words[:_LONGEST] + "…"


def _without_folders(words: str) -> str:
    """'eagle3:/home/me/head.gguf' as 'eagle3:head.gguf': reports are passed on."""
    found = _PATH.fullmatch(words)
    return words if found is None else (found[1] or "") + re.split(r"[/\\]", found[2])[-1]


def _table(names: tuple[str, ...], rows: list[list[str]]) -> Markup:
    head = element("tr", join(*(element("th", name) for name in names))) if names else Markup("")
    body = [element("tr", join(*(element("td", value) for value in row))) for row in rows]
    return element("div", element("table", head, join(*body)), class_="scroll")
