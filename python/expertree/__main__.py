"""`python -m expertree`: the command line."""

from __future__ import annotations

from expertree.cli.main import run

run()
