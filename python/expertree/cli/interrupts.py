"""Ctrl-C that stops an answer and not the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from expertree.errors import Cancelled


class Interrupt:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.happened = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self.happened:
            self.happened = True
            self.check()

    def check(self) -> None:
        """Raises `Cancelled` once Ctrl-C was pressed: what the handler raises in a destructor, Python drops."""
        if self.happened:
            raise Cancelled("stopped by Ctrl-C")


@contextmanager
def cancel_on_interrupt() -> Iterator[Interrupt]:
    """Inside, the first Ctrl-C raises `Cancelled`, and further ones do nothing: the stop is on its way.

    A generation takes `Cancelled` for a request to end and returns what it has; the engine asks for pending signals
    between two layers. Anywhere else the exception passes through the block as any other.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # signals are the main thread's
        return
    before: Any = signal.signal(signal.SIGINT, interrupt._handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
