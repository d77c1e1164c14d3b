"""A profile as one HTML page, which needs nothing but itself. Plots are SVG, drawn for wide screens and for phones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from expertree.errors import DeviceError
from expertree.profile.report.costs import costs
from expertree.profile.report.details import details
from expertree.profile.report.drafts import drafts
from expertree.profile.report.expert_maps import expert_maps
from expertree.profile.report.memory import memory
from expertree.profile.report.overview import overview
from expertree.profile.report.page import page
from expertree.profile.report.step_times import step_times
from expertree.profile.report.timeline import timeline

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_SECTIONS = (overview, step_times, timeline, expert_maps, memory, drafts, costs, details)


def report_html(profile: Profile) -> str:
    """The page."""
    return page(f"{profile.facts['model']['name']}: profile", *(part(profile) for part in _SECTIONS))


def write_report(profile: Profile, path: Path) -> None:
    """Raises DeviceError when the disk does not take it."""
    text = report_html(profile)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"{path}: the report cannot be written: {error.strerror}") from error
