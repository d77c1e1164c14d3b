"""`expertree bench`: speed, one line per measurement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from expertree.bench import TESTS, Bench, Case, Result, default_cases, run_in_turn
from expertree.cli.compare import DEFAULT_ROUNDS, compare
from expertree.cli.comparison_options import BenchModelOptions, ComparisonOptions
from expertree.cli.loading import load_model
from expertree.cli.options import command
from expertree.errors import InvalidRequestError
from expertree.machine_memory import read_machine_memory
from expertree.memory_size import parse_size
from expertree.model import Model

_HEADER = (
    f"{'test':13}{'n':>6}{'depth':>7}{'tokens/s':>11}{'ms':>10}{'C(n)/C(1)':>11}"
    f"{'MB read':>10}{'of memory':>11}{'of int8':>9}"
)


@command
def bench(
    model: Annotated[
        str | None, typer.Argument(help="A GGUF file, or a name that `expertree models` lists.", show_default=False)
    ] = None,
    *,
    rounds: Annotated[
        int | None,
        typer.Option(
            "-r", "--rounds", metavar="N", min=1, help="Rounds; the median counts. Default: 5; with --speculate 2."
        ),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(
            "--test",
            metavar="NAME[:N]",
            help="prefill, decode, verify-chain or verify-tree; with :N only that many tokens or rows; repeatable.",
        ),
    ] = None,
    peer: Annotated[
        Path | None,
        typer.Option("--peer", metavar="LLAMA_BENCH", help="llama.cpp's llama-bench, run alternately on the file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    options: BenchModelOptions,
    comparison: ComparisonOptions,
) -> None:
    """Measure prefill, decoding, and the cost of verifying n rows at once.

    Beside each figure stands how much of this machine's limit it reaches, probed in the same rounds: reading memory for
    the weights that it must read, and int8 arithmetic. Verification computes the logits of every row, in a chain or as
    siblings of a tree; C(n)/C(1) is its time over that of one row.

    [bold]Examples[/bold]

      expertree bench
      expertree bench model.gguf --test decode --test prefill:512 --rounds 9
      expertree bench model.gguf --peer ~/llama.cpp/build/bin/llama-bench

    --speculate instead runs every way to choose what to verify of a drafted tree, alternately and beside plain
    decoding, at each budget of --ram, and writes report.md, results.json, plots and the recorded runs (for `expertree
    replay`) to --out. The defaults take about a quarter of an hour with the default model. Ctrl-C keeps what was
    measured.

      expertree bench --speculate
      expertree bench model.gguf --speculate --draft scripted:0.7,0.6,0.5 --ram all,75%,50%,25% --rounds 9

    The peer's figure for n rows has the logits of the last row only, and is that of the better of --repack 0 and 1.
    Where memory does not hold the model twice, each round loads the two in turn. --json: schema "expertree.bench/1",
    see docs/bench.md.
    """
    chosen = [_test_of(name) for name in test or ()]
    if comparison.speculate:
        return compare(model, options, comparison, rounds or DEFAULT_ROUNDS, as_json)
    if options.ram is not None and options.ram not in ("auto", "all") and parse_size(options.ram) is None:
        raise typer.BadParameter(
            f"{options.ram!r} is no size; several budgets and shares go with --speculate", param_hint="--ram"
        )
    rounds = rounds or 5

    def load() -> Model:
        loaded = load_model(model, options)
        loaded.load_experts()  # what is measured is the model in memory, or with --ram all of it that has room
        return loaded

    loaded = load()
    n_ctx = options.ctx or loaded.n_ctx_train
    cases = [case for case in default_cases(n_ctx) if not chosen or _is_chosen(case, chosen)]
    if not cases:
        sizes = ", ".join(f"{case.test}:{case.n}" for case in default_cases(n_ctx))
        raise InvalidRequestError(
            f"no chosen test fits a context of {n_ctx:,} tokens; there are {sizes}, and more with a larger --ctx"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(cases) * rounds)
        if not as_json:
            keys, values = loaded.cache_types
            print(f"{loaded.path.name}: {loaded.isa}, {loaded.threads} threads, KV cache {keys} and {values}")
            print(_HEADER + (f"{'peer':>10}{'ratio':>8}" if peer else ""))
        first: dict[str, float] = {}

        def advance() -> None:
            progress.advance(task)

        results: Iterable[Result]
        if peer is None or _fits_again(loaded):
            results = Bench(loaded, peer).run(cases, rounds, advance)
        else:
            del loaded
            results = run_in_turn(load, peer, cases, rounds, advance)
        for result in results:
            first.setdefault(result.test, result.seconds)
            print(json.dumps(result.to_json()) if as_json else _line(result, first[result.test]), flush=True)


def _test_of(text: str) -> tuple[str, int | None]:
    name, colon, number = text.partition(":")
    if name not in TESTS or (colon and not number.isdecimal()):
        what = f"{text!r} is no test; there are: {', '.join(TESTS)}, each also with a number, as prefill:512"
        raise typer.BadParameter(what, param_hint="--test")
    return name, int(number) if colon else None


def _is_chosen(case: Case, chosen: list[tuple[str, int | None]]) -> bool:
    return any(case.test == name and number in (None, case.n) for name, number in chosen)


def _fits_again(model: Model) -> bool:
    """Whether memory holds the model a second time, for another program."""
    available = read_machine_memory().available_bytes
    needs = model.memory()
    return available is None or available > needs["expert_bytes"] + needs["weight_bytes"]


def _line(r: Result, first: float) -> str:
    cost = f"{r.seconds / first:.2f}" if r.test.startswith("verify") else ""
    int8 = "" if r.of_int8 is None else f"{r.of_int8:.0%}"
    line = (
        f"{r.test:13}{r.n:6}{r.depth:7}{r.tokens_per_second:11.1f}{r.seconds * 1e3:10.2f}{cost:>11}"
        f"{r.bytes_read * 1e-6:10.0f}{r.of_read:11.0%}{int8:>9}"
    )
    if r.peer_ratio is None or r.peer_ratio_interval is None or r.peer_tokens_per_second is None:
        return line
    low, high = r.peer_ratio_interval
    return line + f"{r.peer_tokens_per_second:10.1f}{r.peer_ratio:8.2f} ({low:.2f}-{high:.2f})"
