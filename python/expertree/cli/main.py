"""The program `expertree`: its commands and its entry."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from expertree import __version__
from expertree.cli.bench import bench
from expertree.cli.chat import chat
from expertree.cli.failures import failures_reported
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without UTF-8 gets "?" and not an exception
            stream.reconfigure(errors="replace")
    try:
        with failures_reported(debug=False):
            app(prog_name="expertree")
    except typer.Exit as end:
        sys.exit(end.exit_code)
