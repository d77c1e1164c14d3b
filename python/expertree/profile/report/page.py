"""The page around the plots: its style, and the little script that reads values off the maps."""

from __future__ import annotations

from importlib.resources import files

from expertree.profile.report.markup import Markup, element, join
from expertree.profile.report.palette import pattern_definitions

# Nothing is loaded from anywhere, and no script but the page's own runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, *parts: Markup) -> str:
    """A whole document."""
    head = join(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", _part("page.css")),
    )
    tip = element("div", id="tip", role="tooltip")
    body = element(
        "body", pattern_definitions(), element("main", join(*parts)), tip, element("script", _part("page.js"))
    )
    return "<!doctype html>\n" + element("html", element("head", head), body, lang="en") + "\n"


def _part(name: str) -> Markup:
    return Markup((files(__package__) / name).read_text(encoding="utf-8"))
