"""Writing to a person's terminal, and to a file or pipe in its place."""

from __future__ import annotations

import os
from typing import TextIO

# Line feed and tab are all the control characters that a terminal is sent: text of a model or a file is not to be
# trusted with moving the cursor, changing colours, or worse.
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_DIM, _NOT_DIM = "\x1b[2m", "\x1b[22m"


def strip_control(text: str) -> str:
    """Text without control characters, line feed and tab excepted."""
    return text.translate(_CONTROL)


class TextStream:
    """A text stream that is written piece by piece, each piece seen at once.

    A terminal gets no control characters; a file or pipe gets the text as it is.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()
        self._has_styles = self.is_terminal and not os.environ.get("NO_COLOR") and knows_escapes()
        self.at_line_start = True

    def write(self, text: str) -> None:
        self._put(text, "", "")

    def write_dim(self, text: str) -> None:
        """In fainter letters where the terminal has them."""
        self._put(text, _DIM, _NOT_DIM) if self._has_styles else self.write(text)

    def note(self, text: str) -> None:
        """A dim line of its own."""
        self.end_line()
        self.write_dim(text)
        self.end_line()

    def end_line(self) -> None:
        """Starts a new line unless one has just begun."""
        if not self.at_line_start:
            self.write("\n")

    def _put(self, text: str, before: str, after: str) -> None:
        if self.is_terminal:
            text = strip_control(text)
        if not text:
            return
        self._stream.write(f"{before}{text}{after}")
        self._stream.flush()
        self.at_line_start = text.endswith("\n")


def knows_escapes() -> bool:
    """Whether the terminal moves its cursor when told to."""
    return os.environ.get("TERM", "") not in ("", "dumb", "unknown")
