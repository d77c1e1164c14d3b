"""`expertree bench --speculate`: the comparison of ways to draft and to choose."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from expertree import __version__, _core
from expertree.cli.comparison_options import BenchModelOptions, ComparisonOptions, split_budgets
from expertree.cli.failures import EXIT_INTERRUPTED
from expertree.cli.interrupts import cancel_on_interrupt
from expertree.cli.loading import load_model
from expertree.comparison.drafts import Draft
from expertree.comparison.machine import budget_bytes
from expertree.comparison.plots import require_matplotlib, write_plots
from expertree.comparison.prompts import load_prompts
from expertree.comparison.replay_check import replay_findings
from expertree.comparison.report import ReportWriter
from expertree.comparison.runner import Findings, Plan, Runner
from expertree.comparison.settings import chosen_settings, comparison_settings
from expertree.errors import Error, InvalidRequestError
from expertree.expert_plan import layer_slots
from expertree.model import Model
from expertree.models import resolve_model
from expertree.shipped_drafting import draft_name, predictor_name
from expertree.speculation import DraftLimits

DEFAULT_ROUNDS = 2
DEFAULT_BUDGETS = "all,50%"


def compare(
    model: str | None, options: BenchModelOptions, wanted: ComparisonOptions, rounds: int, as_json: bool
) -> None:
    """Runs it and writes the report; see `expertree.comparison.runner`."""
    if wanted.plots:
        require_matplotlib()  # before the long part
    console = Console(stderr=True, highlight=False)
    path = resolve_model(model, console)
    tensors = _core.GgufReader(str(path)).tensors
    layers = layer_slots(tensors, _core.direct_read_alignment(str(path)))
    if not layers:
        raise InvalidRequestError(f"{path}: no experts, so there is nothing to choose by; give a mixture of experts")
    all_bytes = sum(layer.n_experts * layer.slot_bytes for layer in layers)
    budgets = split_budgets(options.ram or DEFAULT_BUDGETS)

    def load(budget: str) -> Model:
        size = None if budget in ("all", "auto") else budget_bytes(budget, all_bytes)
        loaded = load_model(model, replace(options, ram=budget if size is None else str(size)))
        loaded.load_experts()
        return loaded

    first = load(budgets[0])
    plan = _plan(first, wanted, budgets, rounds)
    facts = _facts(first)
    models = {budgets[0]: first}
    del first
    writer = ReportWriter(wanted.out, plan, facts, facts["n_moe_layers"])
    findings = _run(plan, lambda budget: models.pop(budget, None) or load(budget), writer, console)
    findings.replayed = replay_findings(findings, plan)
    found = writer.write(findings)
    if wanted.plots:
        write_plots(found, wanted.out)
    if as_json:
        for row in found["summary"]:
            print(json.dumps({"schema": found["schema"], **row}))
    else:
        print((wanted.out / "report.md").read_text(encoding="utf-8"), end="")
    console.print(Text(f"{wanted.out}: report.md, results.json, traces" + (", plots" if wanted.plots else "")))
    if findings.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _run(plan: Plan, load: Any, writer: ReportWriter, console: Console) -> Findings:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=plan.n_runs)
        with cancel_on_interrupt() as interrupt:

            def show(doing: str, done: int) -> None:
                interrupt.check()
                progress.update(task, description=doing, completed=done)

            runner = Runner(plan, load, show)
            try:
                return runner.run(writer.write)
            except Error:
                if runner.findings.runs:
                    writer.write(runner.findings)
                raise


def _plan(model: Model, wanted: ComparisonOptions, budgets: list[str], rounds: int) -> Plan:
    draft = draft_name(wanted.draft, lambda: model.metadata) or "none"
    rows = comparison_settings(model.n_experts, model.n_experts_used, wanted.sweep)
    return Plan(
        prompts=load_prompts(wanted.prompts, wanted.category or (), wanted.per_category),
        settings=chosen_settings(wanted.select, rows) if wanted.select else rows,
        draft=Draft(
            draft,
            predictor_name(wanted.predict, draft, lambda: model.metadata) or "none",
            DraftLimits(wanted.draft_nodes, wanted.draft_depth, wanted.draft_top_k),
        ),
        budgets=budgets,
        temperatures=wanted.temperature or (0.0,),
        n_tokens=wanted.tokens,
        rounds=rounds,
        seed=wanted.seed,
        long_tokens=wanted.long,
    )


def _facts(model: Model) -> dict[str, Any]:
    return {
        "version": __version__,
        "model": model.path.name,
        "machine": platform.platform(),
        "threads": model.threads,
        "isa": model.isa,
        "n_moe_layers": int(model._core.n_moe_layers),
        "n_experts": model.n_experts,
        "n_experts_used": model.n_experts_used,
        "expert_bytes": int(model.experts["all_bytes"]),
    }
