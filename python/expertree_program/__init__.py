"""What the program `expertree` begins with. Apart from the package, whose modules take a second to load: Ctrl-C ends
the program in that time, too, and without a traceback."""

from __future__ import annotations

import signal


def run() -> None:
    """The entry: see `expertree.cli.main.run`."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from expertree.cli.main import run as run_program

    signal.signal(signal.SIGINT, before)
    run_program()
