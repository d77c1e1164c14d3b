"""From exceptions to exit statuses: 0, 1 with one line on stderr, 2 for bad arguments, 130 for Ctrl-C."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import typer

from expertree.errors import Cancelled, Error
from expertree.quantity_text import safe_text

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_MAX_MESSAGE = 2000


@contextmanager
def failures_reported(*, debug: bool) -> Iterator[None]:
    """Turns what a command raises into a line on stderr and `typer.Exit`; with `debug`, a traceback comes before."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        except (KeyboardInterrupt, Cancelled) as interrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from interrupt
        except BrokenPipeError as error:
            _silence_stdout()
            raise typer.Exit(EXIT_BROKEN_PIPE) from error
        except (Error, OSError, MemoryError) as error:
            if debug:
                traceback.print_exc()
            print_error(_message(error))
            _give_up_output()
            raise typer.Exit(EXIT_FAILED) from error


def print_error(message: str) -> None:
    """One line on stderr, whatever the message holds."""
    print(f"expertree: error: {one_line(message)}", file=sys.stderr)


def one_line(message: str) -> str:
    return safe_text(" ".join(message.split()), _MAX_MESSAGE)


def _message(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory; close other programs, or use a shorter context (--ctx) or a smaller model"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"expertree: warning: {one_line(str(message))}", file=sys.stderr)


def _give_up_output() -> None:
    """What cannot be written now (a full disk) cannot be written at the end, where it would change the status."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _silence_stdout()


def _silence_stdout() -> None:
    """Nobody reads on; keeps the interpreter from complaining about it at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
