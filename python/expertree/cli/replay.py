"""`expertree replay`: a recorded run on other machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from expertree.cli.options import command
from expertree.comparison.machine import LINKS, AnyMachine, gpu_machines, parse_machine
from expertree.comparison.replay import Replayed, Replayer
from expertree.comparison.settings import SWEEPS, chosen_settings, comparison_settings
from expertree.comparison.speculation_trace import SpeculationTrace
from expertree.errors import InvalidRequestError
from expertree.profile.profile import Profile, is_profile

_HEADER = (
    f"{'machine':28}{'setting':22}{'tokens/s':>9}{'ratio':>7}{'accepted':>9}{'rows':>6}{'experts':>8}{'fetched':>8}"
    f"{'disk':>7}{'MB/token':>9}{'draft ms':>9}{'verify ms':>10}{'predicted':>10}"
)


@command
def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            help="What `expertree bench --speculate` recorded (trace-tT.npz), or `expertree profile` (profile.npz)."
        ),
    ],
    *,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            "--machine",
            metavar="NAME[,KEY=VALUE]...",
            help="Where it is replayed; repeatable. NAME: pcie3, pcie4, pcie5 (a GPU behind that link), here (the "
            "recording machine as measured), or any; KEY: budget, run, link, behind, disk, layer_us, row_us, "
            "expert_row_us, policy.",
        ),
    ] = None,
    vram: Annotated[
        list[str] | None,
        typer.Option("--vram", metavar="SIZE", help="A GPU of this much for experts, behind each link; repeatable."),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="NAME", help="Only this row or selector; repeatable. Default: all there are."),
    ] = None,
    sweep: Annotated[
        str, typer.Option("--sweep", metavar="NAME", help="Values of parameters: small, large.")
    ] = "small",
    category: Annotated[
        str | None, typer.Option("--category", metavar="NAME", help="Only this category's prompts.")
    ] = None,
    draft_ms: Annotated[
        float | None,
        typer.Option("--draft-ms", min=0, metavar="MS", help="What drafting a tree takes. Default: as recorded."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """What each way to choose would have made of a recorded run on another machine, computed in seconds.

    The selectors and the cache policies are those that run; the times are the machine's: the tier where experts run
    holds what the budget allows, the others come over the link while those that are there run. Speeds are GB/s,
    budgets sizes or shares of all experts. moespec is left out: its text was not recorded.

    [bold]Examples[/bold]

      expertree replay trace-t0.npz
      expertree replay trace-t0.npz --vram 8GiB --vram 12GiB --vram 16GiB --vram 24GiB
      expertree replay trace-t0.npz --machine here,budget=50% --select residency --select evict
      expertree replay trace-t0.npz --machine pcie4,budget=25%,behind=50%,disk=3.5,run=600

    --json: schema "expertree.replay/1", see docs/speculation.md.
    """
    if sweep not in SWEEPS:
        raise typer.BadParameter(f"{sweep!r}; expected one of {', '.join(SWEEPS)}", param_hint="--sweep")
    recorded = _load(trace)
    rows = comparison_settings(recorded.n_experts, recorded.n_used, sweep)
    settings = chosen_settings(select, rows) if select else rows
    lossy = [row.name for row in settings if select and not row.is_lossless]
    if lossy:
        raise InvalidRequestError(f"{', '.join(lossy)}: changes the text, which was not recorded; measure it instead")
    replayer = Replayer(recorded, category)
    machines = _machines(machine or (), vram or (), recorded)
    if not as_json:
        print(
            f"{recorded.model}: {len(recorded.sequences)} texts, {recorded.n_layers} layers of {recorded.n_experts} "
            f"experts, {recorded.all_expert_bytes / 1e9:.2f} GB of them; drafter {recorded.draft}"
        )
        print(_HEADER)
    for place in machines:
        for row in replayer.summaries(settings, place, draft_seconds=None if draft_ms is None else draft_ms * 1e-3):
            print(json.dumps(row.to_json()) if as_json else _line(row), flush=True)


def _load(path: Path) -> SpeculationTrace:
    """A recorded run, or a profile's run."""
    return Profile.load(path).speculation_trace() if is_profile(path) else SpeculationTrace.load(path)


def _machines(names: Sequence[str], vram: Sequence[str], trace: SpeculationTrace) -> list[AnyMachine]:
    """Those asked for; else GPUs that hold 75, 50 and 25 % of the experts, and the recording machine with all."""
    machines: list[AnyMachine] = [parse_machine(name) for name in names]
    machines += gpu_machines(vram)
    if not machines:
        machines = list(gpu_machines(("75%", "50%", "25%"), tuple(LINKS)))
        if trace.costs.are_measured:
            machines.insert(0, parse_machine("here"))
    return machines


def _line(row: Replayed) -> str:
    foreseen = "" if row.predicted_ms is None else f"{row.predicted_ms:.2f}"
    return (
        f"{row.machine[:27]:28}{row.setting[:21]:22}{row.tokens_per_second:9.1f}{row.ratio:7.2f}{row.accepted:9.2f}"
        f"{row.rows:6.1f}{row.unique_experts:8.2f}{row.fetched:8.1f}{row.from_disk:7.1f}{row.mb_fetched:9.1f}"
        f"{row.draft_ms:9.2f}{row.verify_ms:10.2f}{foreseen:>10}"
    )
