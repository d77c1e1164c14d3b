"""A program on a pseudo-terminal."""

from __future__ import annotations

import os
import re
import subprocess
import time

import pytest


class Terminal:
    """A program on a pseudo-terminal: its screen so far, and a keyboard."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
        self._fd, slave = os.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        os.set_blocking(self._fd, False)
        self._screen = ""

    def press(self, keys: str) -> None:
        """Waits for the line editor, but not long, for an answer may be under way instead: what is typed between a
        prompt and the editor's switch of modes is dropped."""
        end = time.monotonic() + 0.5
        while self._is_cooked() and time.monotonic() < end:
            time.sleep(0.01)
        os.write(self._fd, keys.encode())

    def _is_cooked(self) -> bool:
        import termios

        return bool(termios.tcgetattr(self._fd)[3] & termios.ICANON)

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Everything shown since the last match, up to and including this one."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self._screen, re.DOTALL)) is None:
            assert time.monotonic() < end, f"no {pattern!r} in {self._screen!r}"
            self._read()
            time.sleep(0.02)
        shown, self._screen = self._screen[: found.end()], self._screen[found.end() :]
        return shown

    def wait_for_end(self) -> int:
        end = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < end:
            self._read()
            time.sleep(0.02)
        return self.process.wait(timeout=1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def _read(self) -> None:
        try:
            self._screen += os.read(self._fd, 1 << 16).decode("utf-8", "replace")
        except (BlockingIOError, OSError):
            return
