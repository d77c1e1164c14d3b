"""`expertree profile`: where time and bytes went, and what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from expertree.cli.loading import load_model
from expertree.cli.options import GENERATE_DEFAULTS, DraftOptions, ModelOptions, SamplingOptions, command
from expertree.comparison.plots import require_matplotlib
from expertree.comparison.prompts import load_prompts
from expertree.errors import DeviceError
from expertree.model import Model
from expertree.profile.profile import Profile
from expertree.profile.prompted_run import ProfilePrompt, default_prompts, profile_prompts, text_prompt


@command
def profile(
    model: Annotated[
        str | None, typer.Argument(help="A GGUF file, or a name that `expertree models` lists.", show_default=False)
    ] = None,
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt", metavar="TEXT", help="A message to answer; may be given several times."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FOLDER",
            help='Files CATEGORY.jsonl of {"id", "text"} lines. Default: one prompt of each category of ours.',
        ),
    ] = None,
    per_category: Annotated[
        int, typer.Option("--per-category", metavar="N", min=1, help="Prompts of each file of --prompts.")
    ] = 1,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", metavar="N", min=1, help="Most tokens to generate for each prompt.")
    ] = 64,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where the report, the trace and the data go.")
    ] = Path("expertree-profile"),
    advice_seconds: Annotated[
        float,
        typer.Option(
            "--advice-seconds",
            metavar="S",
            min=0,
            help="About how long to try drafts and probe the machine afterwards; 0 judges by the run alone.",
        ),
    ] = 30.0,
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw PNG files as well (needs matplotlib).", show_default=False)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the facts and the advice as one JSON object instead of the summary.")
    ] = False,
    sampling: SamplingOptions,
    drafting: DraftOptions,
    options: ModelOptions,
) -> None:
    """Answer some prompts and show where the time and the bytes went, what holds this run back, and what to change.

    The summary on the screen names the nearest limit and the changes that should bring most, each with the speed that
    the run's own routing and measured costs predict for it. FOLDER gets report.html (one page, no network),
    trace.json (a time line for ui.perfetto.dev or chrome://tracing), profile.json and profile.npz (all of it, for
    programs, `Profile.load` and `expertree replay`).

    [bold]Examples[/bold]

      expertree profile
      expertree profile model.gguf --ram 8GiB --out slow-run
      expertree profile -p "Why is the sky blue?" -n 128 --draft auto

    --json: the facts of schema "expertree.profile/1", see docs/profile.md.
    """
    if plots:
        require_matplotlib()
    _make_folder(out)  # before the long part
    loaded = load_model(model, options)
    settings = {**drafting.values(), **sampling.values(GENERATE_DEFAULTS)}
    chosen = _prompts(loaded, prompt or (), prompts, per_category)
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("profiling", total=len(chosen) + 1)
        made = profile_prompts(loaded, chosen, max_tokens, lambda: progress.advance(task), **settings)
        made.facts["options"] = {
            **{name: value for name, value in {**vars(options), **settings}.items() if value is not None},
            "max_tokens": max_tokens,
        }
        progress.update(task, description="looking for better settings")
        made.advise(loaded if advice_seconds > 0 else None, advice_seconds)
    written = _write(made, out)
    if plots:
        from expertree.profile.plots import write_plots  # loads the report's drawing, which no other command needs

        written += [path.name for path in write_plots(made, out)]
    if as_json:
        print(json.dumps(made.facts))
    else:
        print(made.summary())
    console.print(Text(f"{out}: {', '.join(written)}"), soft_wrap=True)


def _prompts(
    model: Model, texts: tuple[str, ...] | list[str], folder: Path | None, per_category: int
) -> list[ProfilePrompt]:
    if texts:
        return [text_prompt(model, text, f"prompt-{i}") for i, text in enumerate(texts, 1)]
    if folder is not None:
        found = load_prompts(folder, per_category=per_category)
        return [text_prompt(model, p.text, p.id, p.category) for p in found]
    return default_prompts(model)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"{out}: the folder cannot be made: {error.strerror}; give another one with --out") from error


def _write(profile: Profile, out: Path) -> list[str]:
    """Names of the files."""
    profile.save(out / "profile.npz")
    profile.save_json(out / "profile.json")
    profile.trace(out / "trace.json")
    profile.report(out / "report.html")
    return ["report.html", "trace.json", "profile.json", "profile.npz"]
