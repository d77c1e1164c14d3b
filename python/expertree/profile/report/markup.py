"""HTML and SVG as text. Whatever is not `Markup` already is escaped: names come from files that nobody checked."""

from __future__ import annotations

import html
from typing import Any

_VOID = {"br", "link", "meta"}


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Escaped, without control characters; lone surrogates, which no file can hold, become "?"."""
    shown = str(value).encode("utf-8", "replace").decode()
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in shown)
    return Markup(html.escape(shown, quote=True))


def join(*parts: object) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


def element(tag: str, *children: object, **attributes: Any) -> Markup:
    """`<tag attribute="...">children</tag>`. An attribute's underscores become hyphens ("class_": "class"); None leaves
    it out. Numbers are written with two decimals at most."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_number(value) if isinstance(value, (int, float)) else text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{named}>")
    return Markup(f"<{tag}{named}>{join(*children)}</{tag}>")


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
