"""What to change, and what it should bring: each prediction from the run's own trace and measured costs."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree import _core
from expertree.comparison.drafts import Draft
from expertree.comparison.machine import RecordingMachine
from expertree.comparison.recorder import Recorder
from expertree.comparison.replay import Replayer
from expertree.comparison.settings import PLAIN, Setting
from expertree.comparison.speculation_trace import SpeculationTrace
from expertree.errors import Error
from expertree.machine_memory import read_machine_memory
from expertree.profile.budgets import SHARES, Budget, BudgetModel
from expertree.profile.draft_trace import speculation_trace, trace_costs
from expertree.profile.limits import Decoding, find_limit
from expertree.quantity_text import bytes_text
from expertree.shipped_drafting import draft_name, predictor_name
from expertree.speculation import DraftLimits

if TYPE_CHECKING:
    from expertree.model import Model
    from expertree.profile.profile import Profile

SELECTORS = ("residency", "evict", "threshold:0.5", "chain:2", "all")
_LEAST_GAIN = 1.03  # below it a change is not worth a line
_MOST_CHANGES = 3
_TRIAL_POSITIONS = (8, 24)
_TRIAL_NODES = (32, 16, 8)
_CURVE_STEPS = 100  # plain steps that measuring passes of 1 to 33 rows takes, about


@dataclass(frozen=True)
class Change:
    """change: a sentence. option: what to type; "" where it is no option. gain: tokens/s over the present."""

    change: str
    option: str
    gain: float
    tokens_per_second: float
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def advise(profile: Profile, model: Model | None, seconds: float) -> dict[str, Any]:
    """The fact "advice" of docs/profile.md; with a model also the machine's limits, threads, and drafts."""
    if model is not None:
        profile.facts["machine"].update(_probe(model.isa, model.threads, seconds))
    best = sorted((c for c in changes(profile, model, seconds) if c.gain >= _LEAST_GAIN), key=lambda c: -c.gain)
    return {
        "limit": find_limit(profile).to_json(),
        "changes": [change.to_json() for change in best[:_MOST_CHANGES]],
        "budgets": [budget.to_json() for budget in profile.budget_curve()],
    }


def changes(profile: Profile, model: Model | None, seconds: float) -> list[Change]:
    """All that was looked at, whatever it brings. With a model `profile.facts["machine"]` holds its limits."""
    d = Decoding.of(profile)
    if d.tokens == 0:
        return []
    found: list[Change] = []
    if profile.facts["model"]["n_moe_layers"]:
        memory = BudgetModel(profile)
        found += _more_memory(profile, memory, [memory.at_share(share) for share in SHARES], d)
        found += _policies(profile, memory, d)
    found += _drafting(profile, model, seconds, d)
    return found + ([] if model is None else _threads(profile, model, seconds, d))


def _change(d: Decoding, gain: float, change: str, option: str, why: str) -> Change:
    return Change(change, option, gain, gain * d.tokens_per_second, why)


def _probe(isa: str, threads: int, seconds: float) -> dict[str, float]:
    read, int8 = _core.measure_limits(isa, threads, min(0.5, seconds * 0.05))
    return {"read_gb_per_s": read, "int8_gops": int8}


# ---- Memory


def _more_memory(profile: Profile, memory: BudgetModel, budgets: list[Budget], d: Decoding) -> list[Change]:
    """The most that fits beside what is in use; where that is not all, also all, for another machine."""
    now = profile.facts["budget"]
    left = read_machine_memory().available_bytes or 0
    larger = [b for b in budgets if b.bytes > now["bytes"] * 1.05 and b.tokens_per_second is not None]
    fitting = [b for b in larger if b.bytes <= now["bytes"] + 0.85 * left]
    chosen = _knee(fitting)
    changes = [_memory_change(profile, memory, b, d) for b in chosen]
    beyond = [b for b in larger if b not in fitting]
    if beyond:
        change = _memory_change(profile, memory, beyond[-1], d)
        note = f"; this machine has {bytes_text(left)} left"
        changes.append(replace(change, option="", change="more RAM in the machine: " + change.change + note))
    return changes


def _knee(budgets: list[Budget]) -> list[Budget]:
    """The least budget that is within 5 % of the fastest."""
    fastest = max((b.tokens_per_second or 0.0 for b in budgets), default=0.0)
    return [next(b for b in budgets if (b.tokens_per_second or 0.0) >= 0.95 * fastest)] if budgets else []


def _memory_change(profile: Profile, memory: BudgetModel, b: Budget, d: Decoding) -> Change:
    now = memory.at_policy(profile.facts["budget"]["policy"])
    size = "all" if b.share >= 1.0 else _size_option(b.bytes)
    return _change(
        d,
        _gain(memory, b, d),
        f"keep {b.share:.0%} of the experts in memory ({bytes_text(b.bytes)})",
        f"--ram {size}",
        f"the experts that a token needs are then there {b.hit_rate:.0%} of the time instead of {now.hit_rate:.0%}, "
        f"and {b.bytes_per_token * 1e-6:,.0f} MB a token are read from disk instead of "
        f"{now.bytes_per_token * 1e-6:,.0f}",
    )


def _size_option(size: int) -> str:
    """At least so many bytes, in a round number."""
    unit, name = (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")
    step = 0.25 if unit == 2**30 else 8
    return f"{-(-size // (step * unit)) * step:g}{name}"


def _gain(memory: BudgetModel, b: Budget, d: Decoding) -> float:
    """Of tokens/s, time outside the core included."""
    outside = d.zones["python"]
    then = memory.tokens / (b.tokens_per_second or 1.0) + outside
    return (memory.wall + outside) / then


def _policies(profile: Profile, memory: BudgetModel, d: Decoding) -> list[Change]:
    now = profile.facts["budget"]
    if now["bytes"] >= now["all_bytes"]:
        return []
    here = memory.at_policy(now["policy"])
    changes = []
    for name in _core.policy_names():
        if name in (now["policy"], "belady", "pinned"):
            continue
        b = memory.at_policy(name)
        if b.tokens_per_second is not None:
            why = f"in the replay of this run its hit rate is {b.hit_rate:.0%} instead of {here.hit_rate:.0%}"
            changes.append(_change(d, _gain(memory, b, d), f"another cache policy, {name}", f"--policy {name}", why))
    return sorted(changes, key=lambda c: -c.gain)[:1]


# ---- Drafting


def _drafting(profile: Profile, model: Model | None, seconds: float, d: Decoding) -> list[Change]:
    drafts = bool(profile.steps.of_kind("speculate").any())
    try:
        if model is None or not profile.facts["model"]["n_moe_layers"]:
            return _without_drafts(profile, d) if drafts and profile.facts["model"]["n_moe_layers"] else []
        trace = record_trial(profile, model, seconds, d)
    except Error:  # a draft head that does not fit, a prompt that ends at once: nothing is foretold
        return []
    select = next((s["select"] for s in profile.facts["sessions"] if s["select"]), None)
    machine = _machine(profile)
    replayer = Replayer(trace)
    present = Setting("present", "present", select) if drafts else PLAIN
    if drafts and (select not in SELECTORS or "moespec" in (select or "")):
        return _without_drafts(profile, d)
    now = _seconds_per_token(replayer.steps(present, machine))
    changes = []
    if drafts:
        gain = now / _seconds_per_token(replayer.steps(PLAIN, machine))
        changes.append(
            _change(d, gain, "no drafting", "--draft none", "verifying drafts costs more than it saves here")
        )
    best: tuple[float, str, float] | None = None
    for name in SELECTORS:
        if drafts and name == select:
            continue
        columns = replayer.steps(Setting(name, name, name), machine)
        gain = now / _seconds_per_token(columns)
        if best is None or gain > best[0]:
            best = (gain, name, float(columns["accepted"].mean()))
    assert best is not None
    gain, name, accepted = best
    option = f"--select {name}" if drafts else f"--draft {_draft_option(trace)} --select {name}"
    what = f"another choice of what to verify, {name}" if drafts else f"draft tokens with {trace.draft}"
    why = f"in a trial of {trace.sequences[0].n_positions} tokens {accepted:.1f} drafted tokens were accepted a step"
    changes.append(_change(d, gain, what, option, why))
    return changes


def _draft_option(trace: SpeculationTrace) -> str:
    return "auto" if trace.draft.partition(":")[0] in ("eagle3", "mtp", "medusa") else trace.draft


def _without_drafts(profile: Profile, d: Decoding) -> list[Change]:
    """From the profile's own trees alone: what plain decoding would have taken."""
    replayer = Replayer(speculation_trace(profile))
    machine = _machine(profile)
    verified = _seconds_per_token(replayer.steps(Setting("present", "present", "all"), machine))
    gain = verified / _seconds_per_token(replayer.steps(PLAIN, machine))
    return [_change(d, gain, "no drafting", "--draft none", "verifying drafts costs more than it saves here")]


def _machine(profile: Profile) -> RecordingMachine:
    budget = profile.facts["budget"]
    whole = budget["bytes"] >= budget["all_bytes"]
    share = sum(budget["slots"]) / max(1, len(budget["class_of_layer"]) * profile.facts["model"]["n_experts"])
    return RecordingMachine("here", "all" if whole else f"{share * 100:.3f}%", budget["policy"])


def _seconds_per_token(columns: dict[str, Any]) -> float:
    return float(
        (np.sum(columns["verify_seconds"]) + np.sum(columns["draft_seconds"])) / max(1, np.sum(columns["tokens"]))
    )


def record_trial(profile: Profile, model: Model, seconds: float, d: Decoding) -> SpeculationTrace:
    """Drafts at some positions of the run's own text and verifies all of each tree, for as long as was asked. What
    passes of several rows take is measured where there is time for it, else concluded from the run's prompts."""
    asked = next((s for s in profile.facts["sessions"] if s["draft"]), None)
    draft = draft_name("auto" if asked is None else asked["draft"], lambda: model.metadata) or "ngram"
    predict = predictor_name(None if asked is None else asked["predict"], draft, lambda: model.metadata) or "last"
    step = d.seconds / max(1, d.steps)
    limits, n_positions = _trial_size(profile, step, 0.6 * seconds)
    recorder = Recorder(model, Draft(draft, predict, limits))
    sequence = recorder.record("trial", "trial", _prompt_of(profile), n_positions)
    has_time = _CURVE_STEPS * step < 0.4 * seconds
    return recorder.trace([sequence], None if has_time else trace_costs(profile))


def _trial_size(profile: Profile, step: float, seconds: float) -> tuple[DraftLimits, int]:
    """Trees and positions that take about so many seconds, where a plain step takes `step`."""
    fewest, most = _TRIAL_POSITIONS
    for nodes in _TRIAL_NODES:
        n = int(seconds / max(1e-6, step * (1.0 + _union(profile, nodes + 1))))
        if n >= fewest:
            break
    return DraftLimits(nodes=nodes), int(np.clip(n, fewest // 2, most))


def _union(profile: Profile, rows: int) -> float:
    """Experts that so many rows need over those that one needs, if they choose by themselves."""
    n, used = profile.facts["model"]["n_experts"], profile.facts["model"]["n_experts_used"]
    return float(n / used * (1.0 - (1.0 - used / n) ** rows))


def _prompt_of(profile: Profile) -> list[int]:
    """Tokens of the first session that decoded: its prompt."""
    s = profile.steps
    session = int(s.session[s.decoding()][0])
    prompts = np.flatnonzero(s.of_kind("prefill") & (s.session == session))
    rows = np.isin(profile.routing.step, prompts)
    return [int(token) for token in profile.routing.token[rows]]


# ---- Threads


def _threads(profile: Profile, model: Model, seconds: float, d: Decoding) -> list[Change]:
    """All cores instead of some: computing becomes faster as the nearer of the machine's limits moves."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores <= model.threads:
        return []
    now, then = profile.facts["machine"], _probe(model.isa, cores, seconds)
    compute = _compute_share(profile, d, now, then, model.threads / cores)
    outside = d.zones["python"]
    computing = d.seconds - d.zones["wait"] - outside
    waiting = d.zones["wait"]
    if profile.facts["model"]["n_moe_layers"]:
        memory = BudgetModel(profile, compute)
        speed = memory.at_policy(profile.facts["budget"]["policy"]).tokens_per_second
        waiting = memory.tokens / speed - computing * compute if speed else waiting
    gain = d.seconds / (computing * compute + max(0.0, waiting) + outside)
    why = f"computing takes {computing / d.seconds:.0%} of the time, and {cores} threads read memory at " + (
        f"{then['read_gb_per_s']:.1f} GB/s instead of {now['read_gb_per_s']:.1f}"
    )
    return [_change(d, gain, f"use all {cores} cores", f"--threads {cores}", why)]


def _compute_share(profile: Profile, d: Decoding, now: dict[str, Any], then: dict[str, float], threads: float) -> float:
    """What computing takes with other limits, as a share of now: the part that is at the nearer limit moves with it,
    the rest is divided among the threads. threads: present over future."""
    computing = d.seconds - d.zones["wait"] - d.zones["python"]
    operations = 2.0 * profile.facts["model"]["n_multiply_adds"] * d.rows
    of_memory: float = d.bytes_memory / (now["read_gb_per_s"] * 1e9) / computing
    of_int8 = operations / (now["int8_gops"] * 1e9) / computing if now["int8_gops"] else 0.0
    name = "read_gb_per_s" if of_memory >= of_int8 else "int8_gops"
    bound = min(1.0, max(of_memory, of_int8))
    share: float = bound * float(now[name]) / float(then[name]) + (1.0 - bound) * threads
    return share
