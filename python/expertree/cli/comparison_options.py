"""Options of `expertree bench --speculate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from expertree.cli.options import ModelOptions, OptionGroup, check_budget
from expertree.comparison.settings import SWEEPS

_PANEL = "With --speculate: ways to draft and to choose, compared"


def _compare(*names: str, help: str, **rest: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_PANEL, show_default=False, **rest)


def split_budgets(text: str | None) -> list[str]:
    """The budgets of "75%,50%,6GiB,all"; ["all"] for None.

    Raises:
        typer.BadParameter: one of them is none.
    """
    budgets = [part.strip() for part in (text or "all").split(",")]
    for budget in budgets:
        if budget.endswith("%"):
            try:
                share = float(budget[:-1])
            except ValueError:
                share = -1.0
            if not 0 < share <= 100:
                raise typer.BadParameter(f"{budget!r} is no share; give for example 50%")
        else:
            check_budget(budget)
    return budgets


def _check_budgets(text: str | None) -> str | None:
    split_budgets(text)
    return text


def _check_sweep(name: str) -> str:
    if name not in SWEEPS:
        raise typer.BadParameter(f"{name!r}; expected one of {', '.join(SWEEPS)}")
    return name


@dataclass(frozen=True)
class BenchModelOptions(ModelOptions):
    """How the measured model is loaded: several budgets may be given."""

    ram: Annotated[
        str | None,
        typer.Option(
            "--ram",
            metavar="SIZE,...",
            callback=_check_budgets,
            help="Memory for expert weights: 6GiB, 800MiB, all. With --speculate several, and shares of all experts: "
            "all,75%,50%,25%. Default: auto; with --speculate all,50%.",
            rich_help_panel="Model and machine",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class ComparisonOptions(OptionGroup):
    """What is compared."""

    speculate: Annotated[
        bool, _compare("--speculate", help="Compare every way to choose what to verify with plain decoding.")
    ] = False
    draft: Annotated[
        str,
        _compare(
            "--draft",
            metavar="NAME[:ARG]",
            help="Who drafts for all of them; scripted:RATE,RATE,.. drafts true tokens at these rates by depth. "
            "Default: auto, the default model's own head, for others ngram.",
        ),
    ] = "auto"
    predict: Annotated[
        str | None,
        _compare(
            "--predict",
            metavar="NAME",
            help="Who foresees experts. Default: the trained one with that head, else last.",
        ),
    ] = None
    draft_nodes: Annotated[
        int, _compare("--draft-nodes", min=1, metavar="N", help="Nodes of a tree at most. Default: 32.")
    ] = 32
    draft_depth: Annotated[int, _compare("--draft-depth", min=1, metavar="N", help="Its depth. Default: 4.")] = 4
    draft_top_k: Annotated[
        int, _compare("--draft-top-k", min=1, metavar="N", help="Children per node. Default: 8.")
    ] = 8
    select: Annotated[
        list[str] | None,
        _compare("--select", metavar="NAME", help="Only this row or selector; repeatable. Default: all there are."),
    ] = None
    sweep: Annotated[
        str,
        _compare("--sweep", metavar="NAME", callback=_check_sweep, help="How many values of parameters: small, large."),
    ] = "small"
    temperature: Annotated[
        list[float] | None, _compare("--temperature", min=0, metavar="T", help="Repeatable. Default: 0.")
    ] = None
    category: Annotated[
        list[str] | None, _compare("--category", metavar="NAME", help="Only prompts of this one; repeatable.")
    ] = None
    per_category: Annotated[
        int, _compare("--per-category", min=1, metavar="N", help="Prompts of each category. Default: 1.")
    ] = 1
    prompts: Annotated[
        Path | None, _compare("--prompts", metavar="FOLDER", help="Other prompts, files CATEGORY.jsonl.")
    ] = None
    tokens: Annotated[int, _compare("-n", "--tokens", min=2, metavar="N", help="Of each run. Default: 48.")] = 48
    long: Annotated[
        int, _compare("--long", min=0, metavar="N", help="Also generations of N tokens, by windows of 100 steps.")
    ] = 0
    seed: Annotated[int, _compare("--seed", min=0, metavar="N", help="Of sampling. Default: 0.")] = 0
    out: Annotated[
        Path, _compare("--out", metavar="FOLDER", help="Where the report goes. Default: speculation-bench.")
    ] = Path("speculation-bench")
    plots: Annotated[bool, _compare("--plots/--no-plots", help="Draw them (needs matplotlib). Default: yes.")] = True
