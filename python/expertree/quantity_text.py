"""Numbers and foreign text as a person reads them."""

from __future__ import annotations


def bytes_text(size: int) -> str:
    """'12.3 GiB', '800 bytes'."""
    if size < 1024:
        return f"{size} bytes"
    value = size / 1024
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
        value /= 1024
    raise AssertionError(size)


def count_text(count: int) -> str:
    """'30.5 billion', '1,234'."""
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:,}"


def safe_text(text: str, max_characters: int = 120) -> str:
    """One printable line: what a terminal might obey is written as an escape, long text is cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: max_characters + 1])
    return shown if len(shown) <= max_characters else shown[: max_characters - 3] + "..."


def numbers_text(value: int | list[int] | None) -> str:
    """A number, the range of a list that has one number per layer, or "?"."""
    if value is None:
        return "?"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{min(value):,} to {max(value):,}, by layer"
