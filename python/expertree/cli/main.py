"""The program `expertree`: its commands and its entry."""

from __future__ import annotations

import os
import signal
import sys
import threading
from io import TextIOWrapper
from typing import Annotated

import typer

from expertree import __version__
from expertree.cli.bench import bench
from expertree.cli.chat import chat
from expertree.cli.failures import EXIT_FAILED, failures_reported, print_error
from expertree.cli.generate import generate
from expertree.cli.inspect import inspect
from expertree.cli.models import models_app
from expertree.cli.options import unwrapped
from expertree.cli.profile import profile
from expertree.cli.replay import replay

_HELP = """Run Mixture-of-Experts language models on this machine.

MODEL is the path of a GGUF file (of a split one, the first part) or a name that `expertree models` lists; without it, a
small default model is fetched once and used.
"""

app = typer.Typer(
    name="expertree",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"expertree {__version__}")
        raise typer.Exit()


@app.callback(help=unwrapped(_HELP), epilog="Try: expertree chat")
def expertree(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


app.command("chat")(chat)
app.command("generate")(generate)
app.command("inspect")(inspect)
app.command("bench")(bench)
app.command("profile")(profile)
app.command("replay")(replay)
app.add_typer(models_app, name="models")


def run() -> None:
    """The entry: runs the command line and exits.

    Status 0; 1 for a failed run, with one line on stderr; 2 for bad arguments; 130 after Ctrl-C.
    """
    has_output = _open_closed_streams()
    if not has_output:
        print_error("stdout is closed, so there is nowhere to write to; give it a file, a pipe or /dev/null")
        sys.exit(EXIT_FAILED)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 gets "?" and not an exception
            stream.reconfigure(errors="replace")
    try:
        with failures_reported(debug=False):
            app(prog_name="expertree")
    except typer.Exit as end:
        sys.exit(end.exit_code)
    finally:
        _end_at_once_on_interrupt()


def _open_closed_streams() -> bool:
    """A closed stdin is empty and a closed stderr swallows what it is given, instead of taking the number of the next
    file that is opened. False when stdout was closed."""
    has_output = sys.stdout is not None
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    return has_output


def _end_at_once_on_interrupt() -> None:
    """The run is over: another Ctrl-C ends the interpreter's own end without a traceback."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
