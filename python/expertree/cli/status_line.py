"""A line at the bottom of a terminal that stays while text scrolls above it.

The scrolling region of the terminal (DECSTBM) ends one row above it. What belongs together is one `write`, so that an
interrupt between two leaves the cursor where the text goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from expertree.cli.terminal import knows_escapes, strip_control

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_WHOLE = "\x1b[r"  # the region is the screen
_LEAST_ROWS, _LEAST_COLUMNS = 6, 12


def _terminal_size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines


class StatusLine:
    """Drawn on a terminal, and nothing anywhere else or where there is no room.

    Args:
        stream: where the terminal is.
        size: columns and rows now.
    """

    def __init__(self, stream: TextIO, size: Callable[[], tuple[int, int]] = _terminal_size) -> None:
        self._stream = stream
        self._size = size
        self._region: tuple[int, int] | None = None  # the size for which it was set
        self._text = ""
        self.is_possible = stream.isatty() and knows_escapes()

    @property
    def columns(self) -> int:
        return self._size()[0] - 1  # a full row would make some terminals wrap

    def show(self, text: str) -> None:
        """Puts the line there, or changes it. Follows the window's size."""
        columns, rows = self._size()
        if not self.is_possible:
            return
        if rows < _LEAST_ROWS or columns < _LEAST_COLUMNS:
            self.remove()
            return
        self._text = strip_control(text).replace("\n", " ")[: columns - 1]
        parts = []
        if self._region != (columns, rows):
            # The cursor may stand in the last row, which is to be free: IND scrolls then. Setting the region moves it.
            parts.append(f"\x1bD\x1b[A{_SAVE}{_WHOLE}\x1b[1;{rows - 1}r{_RESTORE}")
            self._region = (columns, rows)
        style, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[7m", "\x1b[0m")
        parts.append(f"{_SAVE}\x1b[{rows};1H\x1b[2K{style} {self._text:<{columns - 2}}{plain}{_RESTORE}")
        self._put("".join(parts))

    def remove(self) -> None:
        """Gives the row back."""
        if self._region is None:
            return
        _, rows = self._region
        self._region = None
        self._put(f"{_SAVE}\x1b[{rows};1H\x1b[2K{_WHOLE}{_RESTORE}")

    @contextmanager
    def removed_when_stopped(self) -> Iterator[None]:
        """Inside, Ctrl-Z gives the row back before the program stops."""
        stop = getattr(signal, "SIGTSTP", None)
        in_main = threading.current_thread() is threading.main_thread()
        if stop is None or not in_main or signal.getsignal(stop) is not signal.SIG_DFL:
            yield
            return

        def handle(signum: int, frame: FrameType | None) -> None:
            was_there = self._region is not None
            self.remove()
            signal.signal(stop, signal.SIG_DFL)
            os.kill(os.getpid(), stop)  # goes on here when it is continued
            before: Any = handle
            signal.signal(stop, before)
            if was_there:
                self.show(self._text)

        signal.signal(stop, handle)
        try:
            yield
        finally:
            signal.signal(stop, signal.SIG_DFL)

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
