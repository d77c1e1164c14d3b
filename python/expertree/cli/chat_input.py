"""A person's turns: typed with line editing, or lines from a pipe.

A turn is one line; it goes on after a backslash at the end of a line, and between triple quotes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

_QUOTES = '"""'
_PROMPT = "> "


@dataclass(frozen=True)
class Turn:
    """text: what was meant. is_literal: it is a message even if it looks like a command."""

    text: str
    is_literal: bool = False


def is_unfinished(text: str) -> bool:
    """Whether another line belongs to this turn."""
    stripped = text.strip()
    if stripped.startswith(_QUOTES):
        return len(stripped) < 2 * len(_QUOTES) or not stripped.endswith(_QUOTES)
    return text.endswith("\\")


def to_turn(text: str) -> Turn:
    """A turn without its marks: triple quotes around it, backslashes at its line ends."""
    stripped = text.strip()
    if stripped.startswith(_QUOTES):
        inner = stripped.removeprefix(_QUOTES).removesuffix(_QUOTES)
        return Turn(inner.strip("\n"), is_literal=True)
    joined = text.removesuffix("\\").replace("\\\n", "\n")
    return Turn(joined.strip(), is_literal=joined[:1].isspace())


def read_turns(stream: TextIO) -> Iterator[Turn]:
    """The turns of a pipe or file, up to its end."""
    text: str | None = None
    for line in stream:
        line = line.rstrip("\r\n")
        text = line if text is None else f"{text}\n{line}"
        if not is_unfinished(text):
            yield to_turn(text)
            text = None
    if text is not None:
        yield to_turn(text)


def prompt_turns(
    history_file: Path, say: Callable[[str], object], toolbar: Callable[[], str] = lambda: ""
) -> Iterator[Turn]:
    """The turns of a person at a terminal, up to Ctrl-D, or Ctrl-C twice.

    Args:
        history_file: keeps what was typed, for the arrow keys.
        say: shows a line.
        toolbar: what to show below the prompt; "" for nothing.
    """
    prompt = _make_prompt(history_file)
    was_interrupted = False
    while True:
        prompt.bottom_toolbar = toolbar() or None
        try:
            text = prompt.prompt(_PROMPT)
        except EOFError:
            return
        except KeyboardInterrupt:
            if was_interrupted:
                return
            was_interrupted = True
            say("Ctrl-C again, or Ctrl-D, leaves")
            continue
        was_interrupted = False
        yield to_turn(text)


def _make_prompt(history_file: Path) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    # The answers alone go to a redirected stdout.
    output = None if sys.stdout.isatty() else create_output(stdout=sys.stderr)
    return PromptSession(
        history=_open_history(history_file),
        key_bindings=_key_bindings(),
        multiline=True,
        prompt_continuation=". ",
        output=output,
    )


def _open_history(path: Path) -> History:
    """The file, readable for its owner alone; memory where it cannot be had."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        with path.open("ab"):
            return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()


def _key_bindings() -> KeyBindings:
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_unfinished(buffer.text):
            buffer.cursor_position = len(buffer.text)
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
