"""The replay beside what was measured: the same runs, on the machine that made them."""

from __future__ import annotations

import math
from dataclasses import replace

from expertree.comparison.machine import RecordingMachine
from expertree.comparison.replay import Replayed, Replayer
from expertree.comparison.runner import Findings, Plan
from expertree.comparison.speculation_trace import SpeculationTrace
from expertree.errors import InvalidRequestError


def replay_findings(findings: Findings, plan: Plan) -> dict[tuple[str, float], list[Replayed]]:
    """By budget and temperature, what a replay makes of the settings with what the machine was found to take there.
    Budgets whose disk was never read from are left out."""
    replayed: dict[tuple[str, float], list[Replayed]] = {}
    for budget, costs in findings.costs.items():
        for temperature, trace in findings.traces.items():
            here = replace(trace, costs=costs)
            share = math.ceil(findings.resident_share[budget] * trace.all_expert_bytes)
            machine = RecordingMachine(budget, str(share), findings.policies[budget])
            try:
                replayed[budget, temperature] = Replayer(here).summaries(plan.settings, machine)
            except InvalidRequestError:  # no disk speed
                continue
    return replayed


def final_trace(findings: Findings, temperature: float) -> SpeculationTrace:
    """With the costs of a budget at which the disk was read from, where there is one, else of any."""
    trace = findings.traces[temperature]
    known = sorted(findings.costs.values(), key=lambda costs: costs.read_bytes_per_second > 0)
    return replace(trace, costs=known[-1]) if known else trace
