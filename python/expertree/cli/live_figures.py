"""What a live view shows of an answer: speed, accepted length, hit rate, bytes read, memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from expertree._core import process_resident_bytes
from expertree.quantity_text import bytes_text

WINDOW_SECONDS = 3.0  # what "now" is
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Counts:
    """Sums at a moment. Of a dense model hits, uses and bytes_read are 0."""

    seconds: float
    tokens: int
    steps: int
    accepted: int
    hits: int
    uses: int
    bytes_read: int  # of experts, from files


def read_counts(n_tokens: int, session: Mapping[str, Any], experts: Mapping[str, Any]) -> Counts:
    """session, experts: as of `Session.stats` and `Model.experts`."""
    return Counts(
        seconds=perf_counter(),
        tokens=n_tokens,
        steps=int(session["steps"]),
        accepted=int(session["accepted"]),
        hits=int(experts.get("hits", 0)),
        uses=int(experts.get("uses", 0)),
        bytes_read=int(experts.get("bytes_read", 0)),
    )


class LiveFigures:
    """Collects counts during an answer and says what happened in the last seconds, and in all of it.

    Args:
        read: the counts now.
        memory: resident bytes of the process, 0 where unknown.
    """

    def __init__(self, read: Callable[[], Counts], memory: Callable[[], int] = process_resident_bytes) -> None:
        self._read = read
        self._memory = memory
        self._window: deque[Counts] = deque()
        self._first: Counts | None = None
        self._speeds: deque[float] = deque(maxlen=20)

    def begin(self) -> None:
        """Before an answer."""
        self._window.clear()
        self._first = None

    def take(self) -> None:
        """When tokens have come. The first ones are where counting begins: the prompt's time is not the answer's."""
        now = self._read()
        if self._first is None:
            self._first = now
        self._window.append(now)
        while len(self._window) > 2 and now.seconds - self._window[0].seconds > WINDOW_SECONDS:
            self._window.popleft()
        since = self._window[0]
        if now.seconds > since.seconds:
            self._speeds.append((now.tokens - since.tokens) / (now.seconds - since.seconds))

    def line(self, width: int) -> str:
        """Of the last seconds, in at most so many characters."""
        if len(self._window) < 2:
            return "reading the prompt"[:width]
        fields = self._fields(self._window[0], self._window[-1])
        for form in ([long for long, _ in fields], [short for _, short in fields]):
            text = " │ ".join(form)
            if len(text) <= width:
                spark = self._spark()
                return f"{text}  {spark}" if len(text) + 2 + len(spark) <= width else text
        shown = fields[0][1]
        for _, short in fields[1:]:
            if len(shown) + 3 + len(short) <= width:
                shown += f" │ {short}"
        return shown[:width]

    def summary(self) -> str:
        """Of all of the answer; "" when it had fewer than two tokens."""
        if self._first is None or len(self._window) < 2:
            return ""
        return ", ".join(long for long, _ in self._fields(self._first, self._window[-1]))

    def _fields(self, a: Counts, b: Counts) -> list[tuple[str, str]]:
        """Each in a long and a short form, the most telling first."""
        seconds = max(b.seconds - a.seconds, 1e-9)
        speed = (b.tokens - a.tokens) / seconds
        fields = [(f"{speed:.1f} tokens/s", f"{speed:.1f} t/s")]
        if b.steps > a.steps and b.accepted > 0:
            length = 1 + (b.accepted - a.accepted) / (b.steps - a.steps)
            fields.append((f"{length:.2f} tokens/step", f"{length:.2f} t/step"))
        if b.uses > a.uses:
            rate = (b.hits - a.hits) / (b.uses - a.uses)
            fields.append((f"{rate:.0%} hits", f"{rate:.0%} hit"))
        if b.uses > 0:
            read = (b.bytes_read - a.bytes_read) / seconds * 1e-6
            fields.append((f"{read:,.0f} MB/s read", f"{read:,.0f} MB/s"))
        memory = self._memory()
        if memory > 0:
            fields.append((f"{bytes_text(memory)} in memory", bytes_text(memory)))
        return fields

    def _spark(self) -> str:
        most = max(self._speeds, default=0.0)
        if most <= 0:
            return ""
        return "".join(_SPARKS[min(len(_SPARKS) - 1, int(speed / most * len(_SPARKS)))] for speed in self._speeds)
