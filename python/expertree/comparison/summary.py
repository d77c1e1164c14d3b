"""From timed runs to the rows of the comparison's tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expertree.comparison.intervals import median_interval
from expertree.comparison.runner import Findings, Run
from expertree.comparison.settings import PLAIN, Setting
from expertree.comparison.speculation_trace import SpeculationTrace


@dataclass(frozen=True)
class Row:
    """One setting at one budget and temperature; category None is all of them together.

    tokens_per_second: median over its runs. ratio: median of the runs' ratios to plain decoding, interval its 95 %
    bootstrap interval; None for plain decoding. accepted: drafted tokens accepted, rows: run, hits and misses: experts
    that were in memory or not, milliseconds: all per step. unique_experts: per layer and step. mb_read: per token.
    predicted_over_measured: of the time of verifying, over the steps that were selected for. is_best: the best of its
    family by its ratio. same_text: as plain decoding, in every run.
    """

    budget: str
    temperature: float
    category: str | None
    setting: str
    family: str
    runs: int
    tokens_per_second: float
    ratio: float | None
    interval: tuple[float, float] | None
    accepted: float
    rows: float
    unique_experts: float
    hits: float
    misses: float
    mb_read: float
    draft_ms: float
    select_ms: float
    verify_ms: float
    predicted_over_measured: float | None
    oracle_known: float | None
    is_lossless: bool
    same_text: bool
    is_best: bool = False


def rows_of(findings: Findings, settings: Sequence[Setting], n_layers: int) -> list[Row]:
    """By budget, temperature, category (all together first) and setting, in the order in which they came.

    n_layers: MoE layers of the model.
    """
    rows: list[Row] = []
    runs = findings.runs
    for budget, temperature in dict.fromkeys((run.budget, run.temperature) for run in runs):
        here = [run for run in runs if (run.budget, run.temperature) == (budget, temperature)]
        for category in (None, *dict.fromkeys(run.category for run in here)):
            group: list[Row] = []
            for setting in (PLAIN, *settings):
                chosen = [run for run in here if run.setting == setting.name and category in (None, run.category)]
                if chosen:
                    group.append(_row(chosen, setting, category, n_layers))
            rows += _with_best(group)
    return rows


def _row(runs: Sequence[Run], setting: Setting, category: str | None, n_layers: int) -> Row:
    ratios = [run.ratio for run in runs if run.ratio is not None]
    middle, low, high = median_interval(ratios) if ratios else (None, 0.0, 0.0)
    steps = sum(run.steps for run in runs)
    tokens = sum(run.tokens for run in runs)
    measured = sum(run.of_predicted for run in runs)
    known = [run.oracle_known for run in runs if run.oracle_known is not None]

    def per_step(name: str) -> float:
        return float(sum(getattr(run, name) for run in runs)) / steps

    return Row(
        budget=runs[0].budget,
        temperature=runs[0].temperature,
        category=category,
        setting=setting.name,
        family=setting.family,
        runs=len(runs),
        tokens_per_second=statistics.median(run.tokens_per_second for run in runs),
        ratio=middle,
        interval=(low, high) if ratios else None,
        accepted=per_step("accepted"),
        rows=per_step("rows"),
        unique_experts=per_step("experts") / n_layers,
        hits=per_step("hits"),
        misses=per_step("misses"),
        mb_read=sum(run.bytes_read for run in runs) / tokens * 1e-6,
        draft_ms=per_step("draft_seconds") * 1e3,
        select_ms=per_step("select_seconds") * 1e3,
        verify_ms=per_step("verify_seconds") * 1e3,
        predicted_over_measured=sum(run.predicted_seconds for run in runs) / measured if measured else None,
        oracle_known=statistics.mean(known) if known else None,
        is_lossless=setting.is_lossless,
        same_text=all(run.same_text for run in runs),
    )


def _with_best(rows: Sequence[Row]) -> list[Row]:
    best: dict[str, tuple[float, str]] = {}
    for row in rows:
        if row.ratio is not None and row.ratio > best.get(row.family, (-1.0, ""))[0]:
            best[row.family] = (row.ratio, row.setting)
    names = {name for _, name in best.values()}
    return [Row(**{**vars(row), "is_best": row.setting in names}) for row in rows]


def predictor_recall(trace: SpeculationTrace) -> list[float] | None:
    """By layer, the share of the experts that drafted nodes use which were predicted. Prediction and truth are equally
    many, so that this is the precision as well. None when nothing was predicted."""
    found = np.zeros(trace.n_layers)
    n_rows = 0
    for sequence in trace.sequences:
        known = sequence.predicted[:, 0, 0] >= 0
        routed, predicted = sequence.routed[known], sequence.predicted[known]
        hit = (routed[:, :, :, None] == predicted[:, :, None, :]).any(axis=3)
        found += hit.mean(axis=2).sum(axis=0)
        n_rows += len(routed)
    return (found / n_rows).tolist() if n_rows else None
