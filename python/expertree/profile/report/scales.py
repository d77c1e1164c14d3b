"""From values to pixels, and the numbers along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """low and high are drawn at begin and end (pixels)."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.begin + (value - self.low) / (span if span else 1.0) * (self.end - self.begin)

    def ticks(self, n: int) -> list[float]:
        """About n round values inside."""
        step = round_step((self.high - self.low) / max(1, n))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not less."""
    if not least > 0 or not math.isfinite(least):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= least * (1 - 1e-9))


def round_up(value: float, n: int = 5) -> float:
    """An axis's end: a round number that is not less."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    step = round_step(value / n)
    return step * math.ceil(value / step - 1e-9)


def counted(count: int, what: str) -> str:
    """'1 row', '2 rows'."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def number(value: float) -> str:
    """Three digits or so: '0.25', '12.5', '1,250'."""
    size = abs(value)
    if size >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 0.1 else 3}f}".rstrip("0").rstrip(".")
