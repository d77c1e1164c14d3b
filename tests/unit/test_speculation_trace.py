"""Recording and replay: what a replay counts is what a run counts, step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from expertree import Model, _core
from expertree.comparison.drafts import Draft
from expertree.comparison.machine import Machine, RecordingMachine, parse_machine
from expertree.comparison.recorder import Recorder, plain_text, true_text
from expertree.comparison.replay import Replayer
from expertree.comparison.settings import PLAIN, Setting, comparison_settings
from expertree.comparison.speculation_trace import SpeculationTrace, TraceCosts
from expertree.speculation import DraftLimits

Loader = Callable[..., Model]
PROMPT = [5, 9, 5, 9, 33, 60, 5, 9]
N_TOKENS = 60
SHAPE = {"arch": "qwen3moe", "format": "Q8_0", "n_layers": 3, "n_ctx": 1024}
COSTS = TraceCosts(1e9, 1e-5, 1e-6, [1, 8, 33], [1e-4, 2e-4, 5e-4])
# Their choices depend on no time that was measured.
UNTIMED = ["all", "chain:3", "threshold:0.6", "ecospec:5", "ecospec-static:5"]
DRAFT = Draft("scripted:0.8,0.7,0.6,noise=0.5")


def record(model: Model, draft: Draft = DRAFT, **options: Any) -> SpeculationTrace:
    recorder = Recorder(model, draft, **options)
    return recorder.trace([recorder.record("chat", "chat-01", PROMPT, N_TOKENS)], COSTS)


@pytest.fixture(scope="module")
def trace(load_tiny: Loader) -> SpeculationTrace:
    return record(load_tiny(SHAPE, ram="all"))


def paged_without_guesses(path: Path, n_slots: int) -> Model:
    """Reads nothing but what steps need, so that its hits are a function of the routing."""
    core = _core._testing.load_paged(str(path), threads=1, budget=1 << 40, policy="lru")
    slot = core.experts.stats["all_bytes"] // core.experts.stats["slots"]
    core = _core._testing.load_paged(
        str(path), threads=1, budget=n_slots * slot, policy="lru", background=False, read_ahead=False
    )
    assert core.experts.stats["slots"] == n_slots
    model = Model(path, ram="all")
    model._core = core
    return model


@pytest.mark.parametrize("select", [None, *UNTIMED])
@pytest.mark.parametrize("draft", [DRAFT, Draft("ngram", "token-table")], ids=["scripted", "ngram"])
def test_a_replay_counts_what_a_run_counts(
    select: str | None, draft: Draft, tiny: Callable[..., Path], load_tiny: Loader
) -> None:
    trace = record(load_tiny(SHAPE, ram="all"), draft)
    n_slots = 11  # of 24
    model = paged_without_guesses(tiny(**SHAPE), n_slots)
    truth = true_text(load_tiny(SHAPE, ram="all"), draft, PROMPT, N_TOKENS, ())
    drafting = {} if select is None else {"draft": draft.drafter(truth), "select": select, "predict": draft.predict}
    session = model.session(**drafting)
    session.prefill(PROMPT)
    session.step()  # the prompt has been run, so this one runs nothing
    before = model.experts
    live = []
    while len(session) < len(PROMPT) + 1 + N_TOKENS:
        step = session.step()
        assert step is not None
        after = model.experts
        delta = {name: after[name] - before[name] for name in ("uses", "hits", "misses", "late", "bytes_read")}
        assert delta["late"] == 0
        live.append((len(step.tokens), max(1, step.cost.rows), delta["uses"], delta["misses"], delta["bytes_read"]))
        before = after
    setting = Setting("x", "x", select) if select else PLAIN
    machine = dataclasses.replace(RecordingMachine("here", policy="lru"), budget=str(n_slots * trace.expert_bytes[0]))
    columns = Replayer(trace).steps(setting, machine, calibrate=False)
    names = ("tokens", "rows", "experts", "fetched", "bytes_fetched")
    replayed = list(zip(*(columns[name].tolist() for name in names), strict=True))
    assert replayed == live
    assert sum(row[3] for row in live) > 20 and (select is None or sum(row[0] for row in live) > len(live))


@pytest.mark.parametrize("select", ["all", "chain:3", "residency"])
@pytest.mark.parametrize("draft", [DRAFT, Draft("ngram", "token-table")], ids=["scripted", "ngram"])
def test_policies_learn_from_the_rows_that_stay(
    select: str, draft: Draft, tiny: Callable[..., Path], load_tiny: Loader
) -> None:
    """However much was drafted in vain: they know what they would know after plain decoding."""
    truth = true_text(load_tiny(SHAPE, ram="all"), draft, PROMPT, N_TOKENS, ())
    learned = []
    for drafting in ({}, {"draft": draft.drafter(truth), "select": select, "predict": draft.predict}):
        model = paged_without_guesses(tiny(**SHAPE), 11)
        session = model.session(**drafting)
        session.evaluate(PROMPT)  # all rows through all layers, as drafting asks of a prompt
        session.commit(range(len(PROMPT)))
        n_rows = 0
        while len(session) < len(PROMPT) + N_TOKENS:
            step = session.step(max_tokens=len(PROMPT) + N_TOKENS - len(session))
            assert step is not None
            n_rows += max(1, step.cost.rows)
        learned.append((model.experts["rows"], model._core.experts.profile()))
    assert learned[0] == learned[1]
    assert learned[0][0] == len(PROMPT) + N_TOKENS - 1 < n_rows


def test_rates_are_of_the_rows_that_a_layer_runs(tiny: Callable[..., Path]) -> None:
    """A prompt's last row is the only one that the last layer routes: its experts' rates are no smaller for that."""
    model = paged_without_guesses(tiny(**SHAPE), 11)
    model.session().prefill(PROMPT)
    rates = np.array(model._core.experts.profile()).reshape(-1, model.n_experts)
    assert rates.sum(1) == pytest.approx(model.n_experts_used)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_recording_is_the_plain_text(temperature: float, load_tiny: Loader) -> None:
    model = load_tiny(SHAPE, ram="all")
    trace = record(model, temperature=temperature, seed=7)
    truth = plain_text(model, PROMPT, N_TOKENS + 6, (), temperature=temperature, seed=7)
    (sequence,) = trace.sequences
    assert sequence.text.tolist()[: N_TOKENS + 4] == truth[len(PROMPT) :][: N_TOKENS + 4]
    assert sequence.n_positions == N_TOKENS
    ids, _ = model.routing(truth[:-1])
    assert (sequence.prompt == ids[:, : len(PROMPT)].transpose(1, 0, 2)).all()
    for position in (0, 17, N_TOKENS - 1):
        root = sequence.routed[sequence.tree_rows(position)][0]
        assert (root == ids[:, len(PROMPT) + position]).all()
        assert (sequence.predicted[sequence.tree_rows(position)][0] >= 0).all()


def test_a_text_that_ends_ends_the_recording(load_tiny: Loader) -> None:
    model = load_tiny(SHAPE, ram="all")
    text = plain_text(model, PROMPT, 40, ())[len(PROMPT) :]
    end = next(t for i, t in enumerate(text) if i >= 8 and t not in text[:i])
    recorder = Recorder(model, DRAFT)
    sequence = recorder.record("chat", "short", PROMPT, 40, [end])
    assert sequence.text[-1] == end and sequence.n_positions == len(sequence.text) - 1
    replayer = Replayer(recorder.trace([sequence], COSTS))
    for setting in (PLAIN, Setting("all", "all", "all")):
        assert replayer.steps(setting, Machine("x"))["tokens"].sum() == sequence.n_positions
    with pytest.raises(expertree.InvalidRequestError, match="ends at once"):
        recorder.record("chat", "empty", PROMPT, 40, [text[0]])


def test_a_trace_survives_its_file(trace: SpeculationTrace, tmp_path: Path) -> None:
    trace.save(tmp_path / "run.npz")
    loaded = SpeculationTrace.load(tmp_path / "run.npz")
    for field in dataclasses.fields(trace):
        if field.name != "sequences":
            assert getattr(loaded, field.name) == getattr(trace, field.name)
    for ours, theirs in zip(trace.sequences, loaded.sequences, strict=True):
        for field in dataclasses.fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            assert np.array_equal(a, b) and getattr(a, "dtype", None) == getattr(b, "dtype", None)


def test_what_is_no_trace_is_refused(trace: SpeculationTrace, tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    for content in (b"", b"PK\x03\x04 nothing"):
        path.write_bytes(content)
        with pytest.raises(expertree.InvalidRequestError, match=r"other\.npz"):
            SpeculationTrace.load(path)
    with path.open("wb") as file:
        np.savez(file, head=np.array('{"schema": "expertree.speculation_trace/0"}'))
    with pytest.raises(expertree.InvalidRequestError, match="schema"):
        SpeculationTrace.load(path)
    for name, value in (("parents", 70), ("routed", 99), ("tokens", 500)):
        (sequence,) = trace.sequences
        broken = getattr(sequence, name).copy()
        broken.flat[3] = value
        damaged = dataclasses.replace(trace, sequences=[dataclasses.replace(sequence, **{name: broken})])
        with pytest.raises(expertree.InvalidRequestError, match=r"position|routing|recorded"):
            Replayer(damaged)


@pytest.mark.parametrize("select", UNTIMED)
def test_plain_decoding_is_kept_account_of(select: str, trace: SpeculationTrace) -> None:
    """Whatever drafts bring into memory and push out of it."""
    machine = Machine("x", budget="30%", policy="lru")
    plain = Replayer(trace).steps(PLAIN, machine, calibrate=False)
    columns = Replayer(trace).steps(Setting(select, select, select), machine, calibrate=False)
    n = N_TOKENS
    of_tokens = np.repeat(columns["plain_misses"] / columns["tokens"], columns["tokens"])
    assert abs(of_tokens[:n].sum() - plain["fetched"][:n].sum()) <= of_tokens.max() + 1
    assert columns["fetched"].sum() > 1.2 * columns["plain_misses"].sum()


def test_a_run_keeps_account_of_plain_decoding(tiny: Callable[..., Path], load_tiny: Loader) -> None:
    """It knows what was in memory at first, not how often that had been used: within a tenth."""
    truth = true_text(load_tiny(SHAPE, ram="all"), DRAFT, PROMPT, 400, ())

    def run(**drafting: Any) -> tuple[int, float, int]:
        model = paged_without_guesses(tiny(**SHAPE), 9)
        session = model.session(**drafting)
        # All rows of the prompt through all layers, as drafting asks of it: both begin with the same experts.
        session.evaluate(PROMPT)
        session.commit(range(len(PROMPT)))
        before = model.experts["misses"]
        reckoned = 0.0
        while len(session) < len(PROMPT) + 400:
            step = session.step()
            assert step is not None
            reckoned += step.cost.plain_misses
        return model.experts["misses"] - before, reckoned, len(session)

    plain, _, n = run()
    drafted, reckoned, n_drafted = run(draft=DRAFT.drafter(truth), select="all", predict=DRAFT.predict)
    assert drafted > 1.3 * plain
    assert reckoned / n_drafted == pytest.approx(plain / n, rel=0.1)


@pytest.mark.parametrize("select", [*UNTIMED, "evict", "s2moe", "cascade", "residency", "residency:places=ignored"])
def test_every_step_adds_up(select: str, trace: SpeculationTrace) -> None:
    columns = Replayer(trace).steps(Setting(select, select, select), Machine("x", budget="50%"))
    assert (columns["tokens"] == columns["accepted"] + 1).all()
    assert (columns["accepted"] < columns["rows"]).all()
    assert (columns["fetched"] <= columns["experts"]).all()
    assert N_TOKENS <= columns["tokens"].sum() <= N_TOKENS + 5
    assert (columns["verify_seconds"] > 0).all()
    assert (columns["wait_seconds"] <= columns["verify_seconds"]).all()


def test_times_by_hand(trace: SpeculationTrace) -> None:
    """A machine that takes 1 s of base, 0.1 s for an expert and 0.01 s for a row of it, and 0.3 s to fetch one. It
    forgets none, so that each is fetched when it is first used."""
    core = Machine("x").to_core(trace, 0.25)
    core.fetch_seconds, core.run_base_seconds, core.run_row_seconds = [0.3] * 3, 0.1, 0.01
    core.base_seconds = [1.0]
    columns = _core.replay([s.to_core(trace.n_experts, trace.n_vocab) for s in trace.sequences], core, "all")
    (sequence,) = trace.sequences
    here = {(layer, int(e)) for layer in range(3) for e in np.unique(sequence.prompt[:, layer])}
    position, n_fetched = 0, 0
    for i, tokens in enumerate(columns["tokens"].tolist()):
        rows = sequence.routed[sequence.tree_rows(position)]
        seconds, waited = 1.0, 0.0
        for layer in range(3):
            used = {(layer, int(e)) for e in np.unique(rows[:, layer])}
            run, fetch = 0.1 * len(used) + 0.01 * 2 * len(rows), 0.3 * len(used - here)
            seconds, waited = seconds + max(run, fetch), waited + max(0.0, fetch - run)
            n_fetched += len(used - here)
            here |= used
        assert columns["verify_seconds"][i] == pytest.approx(seconds)
        assert columns["wait_seconds"][i] == pytest.approx(waited)
        position += tokens
    assert n_fetched == columns["fetched"].sum() > 0
    assert (columns["draft_seconds"] == 0.25).all()


def test_an_oracle_sees_what_is_used(trace: SpeculationTrace) -> None:
    """With true sets, every expert in memory and learned prices, a pass takes what was foreseen."""
    replayer = Replayer(trace)
    oracle = replayer.steps(Setting("o", "o", "all", is_oracle=True), Machine("x", run=0.05))
    crude = replayer.steps(Setting("c", "c", "all"), Machine("x", run=0.05))
    error = {
        name: np.abs(columns["predicted_seconds"][10:] / columns["verify_seconds"][10:] - 1).mean()
        for name, columns in (("oracle", oracle), ("crude", crude))
    }
    assert error["oracle"] < 0.02 < error["crude"]


def test_a_selector_that_leaves_nodes_undrafted(trace: SpeculationTrace) -> None:
    """Where rows are dear `residency` has its drafter leave out what would not be verified; that saves passes, too."""
    setting = Setting("residency", "residency", "residency:guard=off")
    replayer = Replayer(trace)
    cheap = replayer.steps(setting, Machine("x", row_us=0.1, layer_us=1000.0), draft_seconds=1.0)
    dear = replayer.steps(setting, Machine("x", row_us=1000.0, layer_us=1000.0), draft_seconds=1.0)
    assert dear["drafted"].mean() < 0.7 * cheap["drafted"].mean()
    assert dear["draft_seconds"].mean() < cheap["draft_seconds"].mean() <= 1.0
    assert (dear["rows"] <= dear["drafted"] + 1).all() and dear["accepted"].sum() > 0
    assert (dear["tokens"] == dear["accepted"] + 1).all()


def test_faster_links_and_larger_budgets_are_never_slower(trace: SpeculationTrace) -> None:
    replayer = Replayer(trace)
    for select in ("all", "chain:3"):
        setting = Setting(select, select, select)

        def speed(setting: Setting = setting, **options: Any) -> float:
            columns = replayer.steps(setting, Machine("x", run=10.0, policy="lru", **options))
            return float(columns["tokens"].sum() / columns["verify_seconds"].sum())

        assert speed(budget="40%", link=0.1) < speed(budget="40%", link=0.5) < speed(budget="all", link=0.1)
        assert speed(budget="40%", link=0.5, behind="60%", disk=0.1) < speed(budget="40%", link=0.5)


def test_a_lossy_selector_is_not_replayed(trace: SpeculationTrace) -> None:
    with pytest.raises(expertree.InvalidRequestError, match=r"moespec.*changes the text"):
        Replayer(trace).steps(Setting("m", "m", "moespec:4"), Machine("x"))
    names = [row.setting for row in Replayer(trace).summaries(comparison_settings(8, 2), Machine("x", budget="50%"))]
    assert names[0] == "plain" and "residency" in names and not any("moespec" in name for name in names)


def test_a_grid_of_machines_takes_seconds(trace: SpeculationTrace) -> None:
    """Not a measurement: it only must not run away."""
    replayer = Replayer(trace)
    rows = [
        r for budget in ("25%", "50%") for r in replayer.summaries(comparison_settings(8, 2), Machine(budget, budget))
    ]
    assert all(row.tokens_per_second > 0 for row in rows)
    plain = [row for row in rows if row.setting == "plain"]
    assert [row.ratio for row in plain] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pcie4,budget=lots", "'lots' is no budget"),
        ("pcie4,budget=1", r"(?i)budget|least|memory"),
        ("pcie4,run=fast", "run='fast' makes no sense"),
        ("pcie4,run=0", "expected GB/s above 0"),
        ("pcie4,speed=3", "keys are: budget, run, link"),
        ("here,run=3", "takes budget and policy only"),
        ("pcie4,policy=best", "best"),
    ],
)
def test_machines_that_make_no_sense(text: str, message: str, trace: SpeculationTrace) -> None:
    with pytest.raises(expertree.Error, match=message):
        Replayer(trace).steps(PLAIN, parse_machine(text))


def test_the_recording_machine_must_have_been_measured(trace: SpeculationTrace) -> None:
    bare = Replayer(dataclasses.replace(trace, costs=TraceCosts()))
    with pytest.raises(expertree.InvalidRequestError, match="no measured costs"):
        bare.steps(PLAIN, parse_machine("here"))
    without_disk = Replayer(dataclasses.replace(trace, costs=dataclasses.replace(COSTS, read_bytes_per_second=0.0)))
    assert without_disk.steps(PLAIN, parse_machine("here"))["tokens"].sum() == N_TOKENS
    with pytest.raises(expertree.InvalidRequestError, match="how fast the disk is"):
        without_disk.steps(PLAIN, parse_machine("here,budget=50%"))


def test_costs_are_measured_when_none_are_given(load_tiny: Loader) -> None:
    model = load_tiny(SHAPE, ram="all")
    recorder = Recorder(model, DRAFT)
    trace = recorder.trace([recorder.record("chat", "chat-01", PROMPT, 12)])
    assert trace.costs.rows[0] == 1 and len(trace.costs.base_seconds) == len(trace.costs.rows)
    assert trace.other_bytes > 0
    assert Replayer(trace).steps(PLAIN, parse_machine("here"))["verify_seconds"].min() > 0


def test_a_dense_model_is_refused(load_tiny: Loader) -> None:
    with pytest.raises(expertree.InvalidRequestError, match="dense"):
        Recorder(load_tiny({"arch": "llama"}), DRAFT)


@pytest.mark.parametrize("spec", ["scripted:x", "scripted:0.5,pace=3", "scripted:0.5,ms=", "scripted:ms=1,0.5"])
def test_scripted_drafts_that_make_no_sense(spec: str) -> None:
    with pytest.raises(expertree.InvalidRequestError, match="makes no sense"):
        Draft(spec)


def test_scripted_drafts() -> None:
    drafter = Draft("scripted:0.8,0.6,noise=0.5,ms=2,seed=3", limits=DraftLimits()).drafter([1, 2])
    assert isinstance(drafter, expertree.ScriptedDrafter)
    assert (drafter.truth, drafter.rates, drafter.spread) == ([1, 2], [0.8, 0.6], 0.3)
    assert (drafter.score_noise, drafter.seconds_per_depth, drafter.seed) == (0.5, 0.002, 3)
