"""Runs a comparison: every setting on the same prompts, alternating, beside plain decoding."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expertree import _core
from expertree.comparison.drafts import Draft
from expertree.comparison.oracle import RecordedOracle
from expertree.comparison.prompts import Prompt
from expertree.comparison.recorder import Curve, Recorder, measure_curve, true_text
from expertree.comparison.replay import Replayed
from expertree.comparison.settings import PLAIN, Setting
from expertree.comparison.speculation_trace import RecordedSequence, SpeculationTrace, TraceCosts
from expertree.errors import Cancelled, InvalidRequestError, UnsupportedError
from expertree.model import Model, encode_messages
from expertree.speculation import Step

WINDOW_STEPS = 100
_WARM_TOKENS = 16
_RANDOM_TOKENS = 32  # of a prompt for a model without a tokenizer


@dataclass(frozen=True)
class Plan:
    """What to run.

    budgets: for expert weights, as `Model(ram=)` takes them, or shares such as "50%". rounds: times that every prompt
    is run with every setting. plain_every: settings between two plain runs. long_tokens: of each long generation, 0 for
    none; long_settings: names of the settings that make one.
    """

    prompts: Sequence[Prompt]
    settings: Sequence[Setting]
    draft: Draft
    budgets: Sequence[str] = ("all",)
    temperatures: Sequence[float] = (0.0,)
    n_tokens: int = 48
    rounds: int = 2
    plain_every: int = 4
    seed: int = 0
    long_tokens: int = 0
    long_settings: Sequence[str] = ("all", "evict", "cascade", "residency")

    def __post_init__(self) -> None:
        for name in ("prompts", "settings", "budgets", "temperatures"):
            if not getattr(self, name):
                raise InvalidRequestError(f"a comparison without {name}; give at least one")
        for name, least in (("n_tokens", 2), ("rounds", 1), ("plain_every", 1), ("long_tokens", 0)):
            if getattr(self, name) < least:
                raise InvalidRequestError(f"{name} is {getattr(self, name)}; expected at least {least}")

    @property
    def n_runs(self) -> int:
        """Timed runs in all, long generations left out."""
        per_prompt = len(self.settings) + -(-len(self.settings) // self.plain_every) + 1
        return len(self.budgets) * len(self.temperatures) * self.rounds * len(self.prompts) * per_prompt


@dataclass
class Run:
    """One timed run.

    tokens: after the first one, which the prompt's own pass gives. seconds: from that one to the last, drafting
    included; its parts draft, select and verify. predicted_seconds: of verifying, over the steps that were selected
    for; of_predicted: what these took. experts: unique ones, summed over layers and steps. hits, misses, bytes_read: of
    the pager meanwhile. same_text: as far as it was generated the text is plain decoding's. ratio: tokens per second
    over the mean of the plain runs before and after; None for plain ones. oracle_known: the share of trees that the
    oracle knew.
    """

    budget: str
    temperature: float
    category: str
    prompt: str
    setting: str
    round: int
    tokens: int
    steps: int
    seconds: float
    drafted: int
    rows: int
    accepted: int
    experts: int
    hits: int
    misses: int
    bytes_read: int
    wait_seconds: float
    draft_seconds: float
    select_seconds: float
    verify_seconds: float
    predicted_seconds: float
    of_predicted: float
    same_text: bool
    ratio: float | None = None
    oracle_known: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class LongRun:
    """A long generation, by windows of 100 steps. utility: time of plain decoding for the same tokens over its time."""

    budget: str
    temperature: float
    prompt: str
    setting: str
    tokens: int
    ratio: float
    utility: list[float]
    accepted: list[float]  # per step


@dataclass
class Findings:
    """What was measured so far. steps: of the first round, for plots: (budget, setting, rows, accepted, experts,
    predicted seconds, verify seconds) of each. traces: by temperature. left_out: prompts whose answer ends at once.
    costs, policies, resident_share: of the machine at each budget. replayed: the same runs as a replay has them, by
    budget and temperature.
    """

    runs: list[Run] = field(default_factory=list)
    steps: list[tuple[str, str, int, int, int, float, float]] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    traces: dict[float, SpeculationTrace] = field(default_factory=dict)
    long_runs: list[LongRun] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    resident_share: dict[str, float] = field(default_factory=dict)
    costs: dict[str, TraceCosts] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    replayed: dict[tuple[str, float], list[Replayed]] = field(default_factory=dict)
    interrupted: bool = False


@dataclass(frozen=True)
class _Item:
    """A prompt to run. truth: what a scripted drafter is told, the prompt included."""

    prompt: Prompt
    ids: list[int]
    truth: list[int]
    sequence: RecordedSequence


class Runner:
    """Runs a plan.

    Args:
        load: a model for one of the plan's budgets; the one before is let go of first.
        progress: called with a line about what comes next, and how many timed runs are done.
    """

    def __init__(
        self,
        plan: Plan,
        load: Callable[[str], Model],
        progress: Callable[[str, int], object] = lambda doing, done: None,
    ) -> None:
        self.plan = plan
        self.findings = Findings()
        self._load = load
        self._progress = progress
        self._items: dict[float, list[_Item]] = {}
        # What a setting has learned at this budget. A session passes it on by itself, but not with objects for plugs.
        self._learned: dict[tuple[str, float], list[float]] = {}

    def run(self, after_round: Callable[[Findings], object] = lambda findings: None) -> Findings:
        """Measures all of the plan; stopped by `Cancelled` or Ctrl-C it returns what it has, marked as interrupted.

        Args:
            after_round: called whenever a round is complete.

        Raises:
            Error: what loading and drafting raise. `findings` holds what was measured before.
        """
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*is lossy")  # the report says so
                for budget in self.plan.budgets:
                    model = self._load(budget)
                    self._learned.clear()
                    for temperature in self.plan.temperatures:
                        self._measure(model, budget, temperature, after_round)
                    del model
        except (Cancelled, KeyboardInterrupt):
            self.findings.interrupted = True
        return self.findings

    def _measure(
        self, model: Model, budget: str, temperature: float, after_round: Callable[[Findings], object]
    ) -> None:
        work = self._prepare(model, temperature)
        if not work:
            raise InvalidRequestError("every prompt's answer ends at once; give other prompts, or another model")
        experts = model.experts
        self.findings.resident_share.setdefault(budget, experts["slots"] * 1.0 / _n_experts(model))
        if budget not in self.findings.curves:
            self._say(f"{budget}: passes of several rows")
            self.findings.curves[budget] = measure_curve(model, work[0].sequence, work[0].ids)
        for setting in self.plan.settings:
            self._say(f"{budget}, temperature {temperature:g}: warming {setting.name}")
            self._once(model, setting, work[0], temperature, min(_WARM_TOKENS, self.plan.n_tokens))
        for number in range(self.plan.rounds):
            for i, item in enumerate(work):
                order = list(self.plan.settings)
                if (number + i) % 2:
                    order.reverse()
                self._compare(model, budget, temperature, number, item, order)
            self._note_costs(model, budget)
            after_round(self.findings)
        if self.plan.long_tokens:
            self._long(model, budget, temperature, work[0])
            after_round(self.findings)

    def _note_costs(self, model: Model, budget: str) -> None:
        """What the machine takes at this budget, now that it has read from its disk."""
        costs, curve = model._core.experts.costs, self.findings.curves[budget]
        self.findings.costs[budget] = TraceCosts(
            costs["read_bytes_per_second"], costs["run_base_seconds"], costs["run_row_seconds"], curve.rows, curve.base
        )
        self.findings.policies[budget] = model.experts["policy"]

    def _prepare(self, model: Model, temperature: float) -> list[_Item]:
        """Records every prompt, once for all budgets: text and routing depend on none."""
        if temperature in self._items:
            return self._items[temperature]
        plan = self.plan
        recorder = Recorder(model, plan.draft, temperature=temperature, seed=plan.seed)
        items: list[_Item] = []
        for prompt in plan.prompts:
            self._say(f"recording {prompt.id}")
            ids = _encode(model, prompt)
            if _answer_is_empty(model, ids, temperature, plan.seed):
                self.findings.left_out.append(prompt.id)
                continue
            truth = true_text(
                model, plan.draft, ids, plan.n_tokens, _end(model), temperature=temperature, seed=plan.seed
            )
            sequence = recorder.record(prompt.category, prompt.id, ids, plan.n_tokens, _end(model))
            items.append(_Item(prompt, ids, truth, sequence))
        self._items[temperature] = items
        if items:
            sequences = [item.sequence for item in items]
            self.findings.traces[temperature] = recorder.trace(sequences, TraceCosts())  # costs: of each budget
        return items

    def _compare(
        self,
        model: Model,
        budget: str,
        temperature: float,
        number: int,
        item: _Item,
        order: Sequence[Setting],
    ) -> None:
        """One prompt with every setting, plain runs between them; each is compared with those before and after it."""
        prompt = item.prompt

        def once(setting: Setting) -> Run:
            self._say(f"{budget}, temperature {temperature:g}, round {number + 1}: {prompt.id}, {setting.name}")
            run, steps = self._once(model, setting, item, temperature, self.plan.n_tokens)
            run.budget, run.category, run.prompt, run.round = budget, prompt.category, prompt.id, number
            if number == 0 and setting.select is not None:
                self.findings.steps += [_point(budget, setting.name, step) for step in steps]
            return run

        before = once(PLAIN)
        self.findings.runs.append(before)
        for begin in range(0, len(order), self.plan.plain_every):
            runs = [once(setting) for setting in order[begin : begin + self.plan.plain_every]]
            after = once(PLAIN)
            plain = 0.5 * (before.tokens_per_second + after.tokens_per_second)
            for run in runs:
                run.ratio = run.tokens_per_second / plain
            self.findings.runs += [*runs, after]
            before = after

    def _once(
        self,
        model: Model,
        setting: Setting,
        item: _Item,
        temperature: float,
        n_tokens: int,
    ) -> tuple[Run, list[Step]]:
        ids, sequence = item.ids, item.sequence
        oracle = RecordedOracle(sequence, len(ids)) if setting.is_oracle else None
        session = model.session(**self._session_options(setting, item.truth, temperature, oracle))
        learned = self._learned.get((setting.name, temperature))
        if learned is not None:
            _core.restore_selector(session._core, learned)
        session.prefill(ids)
        first = session.step()  # the prompt has been run, so it only samples
        assert first is not None and first.cost.rows == 0
        before = model.experts
        steps, seconds = _generate(session, n_tokens, _end(model))
        after = model.experts
        session.remember_costs()
        if setting.select is not None:
            self._learned[setting.name, temperature] = _core.selector_state(session._core)
        costs = [step.cost for step in steps]
        text = session.tokens[len(ids) :]
        foreseen = [cost for cost in costs if cost.predicted > 0]
        run = Run(
            budget="",
            temperature=temperature,
            category="",
            prompt="",
            setting=setting.name,
            round=0,
            tokens=len(text) - 1,
            steps=len(steps),
            seconds=seconds,
            drafted=int(session.stats["drafted"]),
            rows=sum(cost.rows for cost in costs),
            accepted=int(session.stats["accepted"]),
            experts=after["uses"] - before["uses"],
            hits=after["hits"] - before["hits"],
            misses=after["misses"] + after["late"] - before["misses"] - before["late"],
            bytes_read=after["bytes_read"] - before["bytes_read"],
            wait_seconds=after["wait_seconds"] - before["wait_seconds"],
            draft_seconds=sum(cost.draft for cost in costs),
            select_seconds=sum(cost.select for cost in costs),
            verify_seconds=sum(cost.verify for cost in costs),
            predicted_seconds=sum(cost.predicted for cost in foreseen),
            of_predicted=sum(cost.verify for cost in foreseen),
            same_text=_agree(text, sequence.text.tolist()),
            oracle_known=oracle.n_known / oracle.n_asked if oracle and oracle.n_asked else None,
        )
        return run, steps

    def _session_options(
        self, setting: Setting, truth: Sequence[int], temperature: float, oracle: RecordedOracle | None
    ) -> dict[str, Any]:
        options: dict[str, Any] = {"temperature": temperature, "seed": self.plan.seed}
        if setting.select is None:
            return options
        limits = self.plan.draft.limits
        return options | {
            "draft": self.plan.draft.drafter(truth),
            "select": setting.select,
            "predict": self.plan.draft.predict if oracle is None else oracle,
            "draft_nodes": limits.nodes,
            "draft_depth": limits.depth,
            "draft_top_k": limits.top_k,
        }

    def _long(self, model: Model, budget: str, temperature: float, item: _Item) -> None:
        """Each long setting between two plain runs. No end-of-text token ends them."""
        prompt, ids = item.prompt, item.ids
        n_tokens = min(self.plan.long_tokens, model.n_ctx - len(ids) - 2 * self.plan.draft.limits.depth - 4)
        sampling = {"temperature": temperature, "seed": self.plan.seed}
        self._say(f"{budget}: long generation, plain")
        truth = true_text(model, self.plan.draft, ids, n_tokens, (), **sampling)

        def timed(setting: Setting) -> list[tuple[int, float]]:
            self._say(f"{budget}: {n_tokens} tokens, {setting.name}")
            session = model.session(**self._session_options(setting, truth, temperature, None))
            session.prefill(ids)
            times: list[tuple[int, float]] = []
            while sum(n for n, _ in times) < n_tokens:
                start = time.perf_counter()
                step = session.step()
                if step is None:
                    break
                times.append((len(step.tokens), time.perf_counter() - start))
            session.remember_costs()
            return times

        plain = timed(PLAIN)
        for setting in self.plan.settings:
            if setting.name not in self.plan.long_settings:
                continue
            steps, again = timed(setting), timed(PLAIN)
            of_token = [0.5 * (a + b) for (_, a), (_, b) in zip(plain, again, strict=False)]
            utility, accepted = windows(steps, of_token)
            n = min(sum(n for n, _ in steps), len(of_token))
            ratio = sum(of_token[:n]) / sum(seconds for _, seconds in steps)
            self.findings.long_runs.append(
                LongRun(budget, temperature, prompt.id, setting.name, n, ratio, utility, accepted)
            )
            plain = again

    def _say(self, doing: str) -> None:
        self._progress(doing, len(self.findings.runs))


def windows(steps: Sequence[tuple[int, float]], of_token: Sequence[float]) -> tuple[list[float], list[float]]:
    """Utility and accepted tokens per step of each whole window of 100 steps.

    Args:
        steps: (tokens, seconds) of each.
        of_token: seconds of plain decoding for each token.
    """
    utility: list[float] = []
    accepted: list[float] = []
    at = 0
    for begin in range(0, len(steps), WINDOW_STEPS):
        window = steps[begin : begin + WINDOW_STEPS]
        n = sum(tokens for tokens, _ in window)
        if len(window) == WINDOW_STEPS and at + n <= len(of_token):
            utility.append(sum(of_token[at : at + n]) / sum(seconds for _, seconds in window))
            accepted.append(n / WINDOW_STEPS - 1)
        at += n
    return utility, accepted


def _generate(session: Any, n_tokens: int, end: Sequence[int]) -> tuple[list[Step], float]:
    """Steps until there are n_tokens, or one of `end` came, and what they took. The last one may go further."""
    steps: list[Step] = []
    n = 0
    start = time.perf_counter()
    while n < n_tokens:
        step = session.step(end_tokens=end)
        if step is None:
            break
        steps.append(step)
        n += len(step.tokens)
        if step.tokens[-1] in end:
            break
    return steps, time.perf_counter() - start


def _encode(model: Model, prompt: Prompt) -> list[int]:
    """Through the chat template, where the model has one; random ids, the same for each prompt, for a model without a
    tokenizer that is known, as synthetic ones are."""
    try:
        tokenizer = model.tokenizer
    except UnsupportedError:
        rng = np.random.default_rng(list(prompt.id.encode()))
        return [int(token) for token in rng.integers(0, model.n_vocab, _RANDOM_TOKENS)]
    if tokenizer.chat_template is None:
        return tokenizer.encode(prompt.text, add_special=True)
    return encode_messages(model, [{"role": "user", "content": prompt.text}])[0]


def _answer_is_empty(model: Model, ids: Sequence[int], temperature: float, seed: int) -> bool:
    """Whether it ends with its first token: nothing to measure."""
    session = model.session(temperature=temperature, seed=seed)
    session.prefill(ids)
    step = session.step()
    return step is None or step.tokens[0] in _end(model)


def _end(model: Model) -> list[int]:
    try:
        return sorted(model.tokenizer.eog_ids)
    except UnsupportedError:
        return []


def _agree(text: Sequence[int], truth: Sequence[int]) -> bool:
    n = min(len(text), len(truth))
    return list(text[:n]) == list(truth[:n])


def _n_experts(model: Model) -> int:
    return int(model._core.n_moe_layers) * model.n_experts


def _point(budget: str, setting: str, step: Step) -> tuple[str, str, int, int, int, float, float]:
    cost = step.cost
    return budget, setting, cost.rows, len(step.accepted), cost.experts, cost.predicted, cost.verify
