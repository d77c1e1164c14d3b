"""Budgets for expert weights: "6GiB", "800MiB", "auto", "all", or a number of bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from expertree.errors import InvalidRequestError

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Budget:
    """size_bytes: at most so many, None for as many as the experts take. leave_margin: and less, so that a session and
    the system keep room."""

    size_bytes: int | None
    leave_margin: bool


def parse_size(text: str) -> int | None:
    """Bytes of "6GiB", "1.5 GB", "800M" (binary, as llama.cpp has it) or "4096"; None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit, binary = match.groups()
    is_decimal = unit is not None and not binary and text.strip()[-1] in "bB"
    factor = (1000 if is_decimal else 1024) ** _POWERS[unit.upper()] if unit else 1
    return int(float(number) * factor)


def parse_budget(ram: str | int, name: str = "ram") -> Budget:
    """What `Model(ram=...)` and `--ram` take, and `vram`.

    Raises:
        InvalidRequestError: none of the forms, or less than nothing.
    """
    if ram == "all":
        return Budget(None, leave_margin=False)
    if ram == "auto":
        return Budget(None, leave_margin=True)
    size = ram if isinstance(ram, int) and not isinstance(ram, bool) else None
    if isinstance(ram, str):
        size = parse_size(ram)
    if size is None or not 0 <= size < 2**63:
        raise InvalidRequestError(f"{name} is {ram!r}; expected 'auto', 'all', or a size such as '6GiB' or 800000000")
    return Budget(size, leave_margin=False)
