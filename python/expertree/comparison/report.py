"""Writes what a comparison found: results.json (schema "expertree.speculation_bench/1", documented in docs/bench.md),
report.md, and the recorded runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from expertree.comparison.replay import Replayed
from expertree.comparison.replay_check import final_trace
from expertree.comparison.runner import Findings, Plan
from expertree.comparison.speculation_trace import TraceCosts
from expertree.comparison.summary import Row, predictor_recall, rows_of
from expertree.errors import DeviceError

SCHEMA = "expertree.speculation_bench/1"
_HEADER = (
    "| setting | tokens/s | ratio to plain (95 %) | accepted | rows | experts/layer | hits | misses | MB/token "
    "| draft ms | select ms | verify ms | predicted/measured |"
)


def results(findings: Findings, plan: Plan, facts: dict[str, Any], n_layers: int) -> dict[str, Any]:
    """The object of results.json. facts: about model and machine."""
    return {
        "schema": SCHEMA,
        **facts,
        "interrupted": findings.interrupted,
        "plan": {
            "draft": plan.draft.label,
            "predict": plan.draft.predict_label,
            "limits": asdict(plan.draft.limits),
            "budgets": list(plan.budgets),
            "temperatures": list(plan.temperatures),
            "tokens": plan.n_tokens,
            "rounds": plan.rounds,
            "seed": plan.seed,
            "prompts": [prompt.id for prompt in plan.prompts],
            "settings": [asdict(setting) for setting in plan.settings],
        },
        "left_out": findings.left_out,
        "resident_share": findings.resident_share,
        "summary": [asdict(row) for row in rows_of(findings, plan.settings, n_layers)],
        "runs": [asdict(run) for run in findings.runs],
        "curves": {budget: vars(curve) for budget, curve in findings.curves.items()},
        "predictor_recall": {str(t): predictor_recall(trace) for t, trace in findings.traces.items()},
        "replayed": [
            {"budget": budget, "temperature": temperature, **asdict(row)}
            for (budget, temperature), rows in findings.replayed.items()
            for row in rows
        ],
        "long_runs": [asdict(run) for run in findings.long_runs],
        "steps": {
            "columns": ["budget", "setting", "rows", "accepted", "experts", "predicted_seconds", "verify_seconds"],
            "values": findings.steps,
        },
    }


class ReportWriter:
    """Writes results.json, report.md and trace-tTEMPERATURE.npz into a folder, as often as there is something new.

    facts: about model and machine. n_layers: its MoE layers. Raises DeviceError when the folder takes no file.
    """

    def __init__(self, folder: Path, plan: Plan, facts: dict[str, Any], n_layers: int) -> None:
        self._folder, self._plan, self._facts, self._n_layers = folder, plan, facts, n_layers
        self._saved: dict[float, TraceCosts] = {}
        try:  # before hours of measuring
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, findings: Findings) -> dict[str, Any]:
        """Returns the object of results.json. Raises DeviceError when the disk does not take the files."""
        found = results(findings, self._plan, self._facts, self._n_layers)
        try:
            _replace(self._folder / "results.json", json.dumps(found) + "\n")
            _replace(self._folder / "report.md", markdown(findings, self._plan, self._facts, self._n_layers))
        except OSError as error:
            raise self._unwritable(error) from error
        for temperature in findings.traces:
            trace = final_trace(findings, temperature)
            if self._saved.get(temperature) != trace.costs:
                trace.save(self._folder / f"trace-t{temperature:g}.npz")
                self._saved[temperature] = trace.costs
        return found

    def _unwritable(self, error: OSError) -> DeviceError:
        return DeviceError(f"{self._folder}: the report cannot be written: {error.strerror}; give another --out")


def markdown(findings: Findings, plan: Plan, facts: dict[str, Any], n_layers: int) -> str:
    """The report as text: a table for each budget and temperature, then the best settings by category."""
    rows = rows_of(findings, plan.settings, n_layers)
    lines = [
        f"# Ways to choose what to verify: {facts['model']}",
        "",
        f"Drafter {plan.draft.label}, predictor {plan.draft.predict_label}, up to {plan.draft.limits.nodes} nodes; "
        f"{plan.n_tokens} tokens, {plan.rounds} rounds over {len(plan.prompts) - len(findings.left_out)} prompts; "
        f"{facts['threads']} threads, {facts['isa']}, seed {plan.seed}. Settings alternate prompt by prompt, plain "
        "runs between them. Ratio: median over the runs, each against the plain runs before and after it. Bold: the "
        "best of its family. Counts and milliseconds are per step, drafting included in every speed.",
    ]
    if findings.interrupted:
        lines += ["", "**Interrupted: what was measured until then.**"]
    if findings.left_out:
        lines += ["", f"Left out, because the answer ends at once: {', '.join(findings.left_out)}."]
    for budget, temperature in dict.fromkeys((row.budget, row.temperature) for row in rows):
        here = [row for row in rows if (row.budget, row.temperature) == (budget, temperature)]
        share = findings.resident_share.get(budget, 1.0)
        lines += ["", f"## Budget {budget} ({share:.0%} of the experts), temperature {temperature:g}", ""]
        lines += [_HEADER, "| --- " * 13 + "|"]
        lines += [_line(row) for row in here if row.category is None]
        lines += _notes([row for row in here if row.category is None])
        lines += _by_category(here)
        lines += _replayed(findings.replayed.get((budget, temperature), []), here)
    for temperature, trace in findings.traces.items():
        recall = predictor_recall(trace)
        if recall is not None:
            lines += ["", f"Predictor {plan.draft.predict_label} at temperature {temperature:g}: recall (= precision) "]
            lines[-1] += f"{sum(recall) / len(recall):.3f} on average, {min(recall):.3f} to {max(recall):.3f} by layer."
    lines += _long(findings)
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    name = f"**{row.setting}**" if row.is_best else row.setting
    ratio = (
        "1"
        if row.ratio is None or row.interval is None
        else "{:.2f} ({:.2f} to {:.2f})".format(row.ratio, *row.interval)
    )
    foreseen = "" if row.predicted_over_measured is None else f"{row.predicted_over_measured:.2f}"
    return (
        f"| {name}{'' if row.is_lossless else ' (LOSSY)'} | {row.tokens_per_second:.1f} | {ratio} | {row.accepted:.2f} "
        f"| {row.rows:.1f} | {row.unique_experts:.2f} | {row.hits:.0f} | {row.misses:.1f} | {row.mb_read:.1f} "
        f"| {row.draft_ms:.2f} | {row.select_ms:.3f} | {row.verify_ms:.2f} | {foreseen} |"
    )


def _notes(rows: Sequence[Row]) -> list[str]:
    notes: list[str] = []
    changed = [row.setting for row in rows if row.is_lossless and not row.same_text]
    if changed:
        notes.append(
            f"**The text differs from plain decoding's, which is a fault of the engine: {', '.join(changed)}.**"
        )
    notes += [
        f"{row.setting}: the text {'is as plain decoding gives it here' if row.same_text else 'is another one'}."
        for row in rows
        if not row.is_lossless
    ]
    notes += [
        f"{row.setting}: knew {row.oracle_known:.1%} of the trees." for row in rows if row.oracle_known is not None
    ]
    return ["", *notes] if notes else []


def _by_category(rows: Sequence[Row]) -> list[str]:
    """Ratios of the settings that are the best of their family over all categories."""
    best = [row.setting for row in rows if row.category is None and row.is_best]
    categories = list(dict.fromkeys(row.category for row in rows if row.category is not None))
    if not best or not categories:
        return []
    ratio = {(row.setting, row.category): row for row in rows}
    lines = ["", "| ratio by category | " + " | ".join(categories) + " |", "| --- " * (len(categories) + 1) + "|"]
    for setting in best:
        cells = []
        for category in categories:
            row = ratio.get((setting, category))
            known = row is not None and row.ratio is not None and row.interval is not None
            cells.append(f"{row.ratio:.2f} (from {row.interval[0]:.2f})" if known else "")  # type: ignore[union-attr,index]
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return lines


def _replayed(replayed: Sequence[Replayed], rows: Sequence[Row]) -> list[str]:
    """The replay of this machine beside what was measured."""
    measured = {row.setting: row for row in rows if row.category is None}
    if not replayed:
        return []
    lines = ["", "Replay of this machine beside what was measured, without the time of selecting:", ""]
    lines += [
        "| setting | ms per step | replayed | tokens per step | replayed | ratio | replayed |",
        "| --- " * 7 + "|",
    ]
    for row in replayed:
        ours = measured.get(row.setting)
        if ours is None:
            continue
        lines.append(
            f"| {row.setting} | {ours.draft_ms + ours.verify_ms:.2f} | {row.draft_ms + row.verify_ms:.2f} "
            f"| {1 + ours.accepted:.2f} | {1 + row.accepted:.2f} | {1.0 if ours.ratio is None else ours.ratio:.2f} "
            f"| {row.ratio:.2f} |"
        )
    return lines


def _long(findings: Findings) -> list[str]:
    if not findings.long_runs:
        return []
    lines = [
        "",
        "## Long generations",
        "",
        "| budget | temperature | prompt | setting | tokens | ratio | utility by window of 100 steps |",
    ]
    lines.append("| --- " * 7 + "|")
    for run in findings.long_runs:
        utility = " ".join(f"{value:.2f}" for value in run.utility)
        lines.append(
            f"| {run.budget} | {run.temperature:g} | {run.prompt} | {run.setting} | {run.tokens} | {run.ratio:.2f} "
            f"| {utility} |"
        )
    return lines


def _replace(path: Path, text: str) -> None:
    """An interrupted write leaves the file before it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
