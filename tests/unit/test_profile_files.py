"""Profiles as files, their replay, and what is concluded from them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from expertree import InvalidRequestError, Model, ScriptedDrafter
from expertree.comparison.machine import RecordingMachine
from expertree.comparison.replay import Replayer
from expertree.comparison.settings import PLAIN, Setting
from expertree.profile import KINDS, ZONES, Profile
from expertree.profile.budgets import BudgetModel
from expertree.profile.limits import Decoding, find_limit
from expertree.profile.tables import read_lanes
from profiled_model import SPEC
from sample_profile import sample_profile

Tiny = Callable[..., Path]
PROMPT = np.random.default_rng(4).integers(0, 96, 30).tolist()


@pytest.fixture(scope="module")
def sample() -> Profile:
    return sample_profile()


def same(a: Profile, b: Profile) -> bool:
    return a.facts == b.facts and all(
        (values == b.tables()[name].arrays()[column]).all()
        for name, table in a.tables().items()
        for column, values in table.arrays().items()
    )


def test_a_file_gives_the_same_profile(sample: Profile, tmp_path: Path) -> None:
    sample.save(tmp_path / "p.npz")
    loaded = Profile.load(tmp_path / "p.npz")
    assert same(sample, loaded)
    sample.save_json(tmp_path / "p.json")
    from_json = json.loads((tmp_path / "p.json").read_text())
    assert from_json["schema"] == "expertree.profile/1"
    assert from_json["zones"] == list(ZONES)
    assert len(from_json["steps"]["wall"]) == len(sample.steps)
    assert from_json["routing"]["experts"][0] == sample.routing.experts[0].tolist()


def test_other_files_are_refused(sample: Profile, tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    for content in (b"", b"PK\x03\x04 no zip", b"x" * 100):
        path.write_bytes(content)
        with pytest.raises(InvalidRequestError, match="no profile of schema"):
            Profile.load(path)
    with pytest.raises(InvalidRequestError, match="no profile"):
        Profile.load(tmp_path / "missing.npz")
    np.savez(path, head=json.dumps({"schema": "expertree.profile/9"}))
    with pytest.raises(InvalidRequestError, match="not of schema"):
        Profile.load(path)
    good = {name: table.arrays() for name, table in sample.tables().items()}
    for table, column, values, message in (
        ("steps", "wall", np.zeros(3), "expected"),
        ("steps", "wall", np.zeros((3, 3)), r"\(steps\)"),
        ("nodes", "score", np.array(["a"]), "expected float32"),
        ("events", "zone", np.full(len(sample.events), 99, np.uint8), "expected 0 to 12"),
        ("routing", "step", np.full(len(sample.routing), 10**6, np.int32), "expected 0 to"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            Profile.of(sample.facts, {**good, table: {**good[table], column: values}})
    with pytest.raises(InvalidRequestError, match="steps is missing"):
        Profile.of(sample.facts, {})


def test_the_trace_is_what_viewers_read(sample: Profile, tmp_path: Path) -> None:
    sample.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    steps = [e for e in events if e["name"] in KINDS]
    assert len(steps) == len(sample.steps)
    zones = [e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["name"] in ZONES]
    assert len(zones) == len(sample.events)
    # Viewers nest pieces by time: each zone lies in its step.
    for zone in zones[:200]:
        step = steps[zone["args"]["step"]]
        assert step["ts"] - 0.01 <= zone["ts"]
        assert zone["ts"] + zone["dur"] <= step["ts"] + step["dur"] + 0.01
    assert sum(e["ph"] == "X" and e["pid"] == 2 for e in events) == len(sample.reads)


def test_lanes_do_not_overlap() -> None:
    begin, end = np.array([0.0, 1.0, 1.5, 3.0, 3.0]), np.array([2.0, 3.0, 1.6, 4.0, 3.5])
    assert read_lanes(begin, end).tolist() == [0, 1, 2, 0, 1]


def test_reuse_distances_by_hand(sample: Profile) -> None:
    """One layer; each pass uses two experts, in rising order within it."""
    ids = np.array([[[0, 1]], [[1, 2]], [[0, 1]]], np.int16)  # (rows, layers, used)
    routing = dataclasses.replace(
        sample.routing,
        step=np.array([0, 1, 2], np.int32),
        token=np.zeros(3, np.int32),
        node=np.full(3, -1, np.int32),
        experts=ids,
        predicted=ids,
    )
    experts = dataclasses.replace(sample.experts, uses=np.zeros((1, 4), np.int64))
    profile = dataclasses.replace(sample, routing=routing, experts=experts)
    assert profile.reuse_distances().tolist() == [-1, -1, 0, -1, 2, 2]


def test_union_curve_by_hand(sample: Profile) -> None:
    curve = sample.union_curve([1, 2, 1000])
    used = sample.routing.experts.shape[2]
    assert curve[0] == used
    assert used <= curve[1] <= 2 * used
    assert np.isnan(curve[2])


# ---- Budgets


def test_budgets_of_the_runs_own_size_give_its_own_speed(sample: Profile) -> None:
    model = BudgetModel(sample)
    d = Decoding.of(sample)
    own = model.at_policy(sample.facts["budget"]["policy"])
    assert own.tokens_per_second == pytest.approx(model.tokens / model.wall, rel=0.01)
    curve = sample.budget_curve((0.2, 0.4, 0.6, 0.8, 1.0))
    speeds = [point.tokens_per_second or 0.0 for point in curve]
    assert speeds == sorted(speeds)
    assert [point.hit_rate for point in curve] == sorted(point.hit_rate for point in curve)
    computing = d.seconds - d.zones["wait"] - d.zones["python"]
    assert speeds[-1] <= d.tokens / computing * 1.001


def test_a_replay_begins_with_what_was_in_memory(sample: Profile) -> None:
    full = np.ones_like(sample.experts.initial)
    warm = dataclasses.replace(sample, experts=dataclasses.replace(sample.experts, initial=full))
    (point,) = warm.budget_curve((1.0,))
    assert point.hit_rate == 1.0
    (point,) = sample.budget_curve((1.0,))
    assert point.hit_rate < 1.0


def test_reading_hides_behind_computing(sample: Profile) -> None:
    model = BudgetModel(sample)
    misses = np.ones_like(model._misses)
    n_layers = misses.shape[1]
    assert model.waiting(misses, 1.0, np.full(n_layers, 1e-7)) == 0.0
    all_of_it = misses.sum() * 1.0
    assert 0.95 * all_of_it < model.waiting(misses, 1.0, np.full(n_layers, 1.0)) < all_of_it


def test_a_replay_counts_the_runs_own_hits(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    model = Model(path, ram=int(0.4 * Model(path).experts["all_bytes"]), policy="lru")
    model.load_experts()
    with model.profile() as run:
        model.generate(PROMPT, max_tokens=60)
    profile = run.profile
    own = BudgetModel(profile).at_policy("lru")
    decoding = profile.steps.of_kind("decode")
    touched = profile.steps.experts_touched[decoding].sum()
    there = (profile.steps.experts_hit + profile.steps.experts_late + profile.steps.prefetch_used)[decoding].sum()
    # Guesses bring some experts in time that the replay, which does not guess, counts as missed.
    assert 1 - profile.steps.experts_missed[decoding].sum() / touched >= own.hit_rate - 0.1
    assert own.hit_rate <= there / touched + 0.05


def test_a_dense_model_has_no_budgets(tiny: Tiny) -> None:
    model = Model(tiny(arch="llama"))
    with model.profile() as run:
        model.generate(PROMPT, max_tokens=4)
    assert run.profile.budget_curve() == []
    assert run.profile.advise()["budgets"] == []
    assert "llama" in run.profile.summary()
    with pytest.raises(InvalidRequestError, match="routes nothing"):
        run.profile.speculation_trace()


# ---- Replays


def test_a_profile_feeds_the_replayer(tiny: Tiny) -> None:
    """Verifying all that was verified gives the run's own steps again."""
    path = tiny(**SPEC)
    model = Model(path, ram=int(0.5 * Model(path).experts["all_bytes"]))
    truth = PROMPT + Model(path).generate(PROMPT, max_tokens=40).tokens
    with model.profile() as run:
        session = model.session(draft=ScriptedDrafter(truth, rates=(0.8,)), select="all")
        session.prefill(PROMPT)
        while len(session) < len(PROMPT) + 24:
            session.step()
    profile = run.profile
    trace = profile.speculation_trace()
    (sequence,) = trace.sequences
    assert sequence.text.tolist() == session.tokens[len(PROMPT) :]
    assert sequence.n_positions == len(sequence.text) - 1
    assert sequence.prompt.shape == (len(PROMPT), 3, 2)
    assert (sequence.prompt >= 0).all()
    columns = Replayer(trace).steps(Setting("all", "all", "all"), RecordingMachine("here"))
    ran = profile.steps.of_kind("speculate") & (profile.steps.rows > 0)
    n_passes = int(ran.sum())
    assert profile.steps.accepted.sum() >= 3
    assert len(sequence.routed) == sequence.n_positions + len(sequence.tokens)
    assert len(sequence.tokens) == profile.nodes.verified.sum() + nodes_below_accepted(profile)
    assert columns["accepted"].tolist()[: n_passes - 1] == profile.steps.accepted[ran].tolist()[:-1]
    assert columns["rows"].tolist()[: n_passes - 1] == profile.steps.rows[ran].tolist()[:-1]
    assert columns["experts"].tolist()[: n_passes - 1] == profile.steps.experts_touched[ran].tolist()[:-1]
    plain = Replayer(trace).steps(PLAIN, RecordingMachine("here"))
    assert plain["tokens"].sum() == len(sequence.text) - 1


def nodes_below_accepted(profile: Profile) -> int:
    """Each verified node once for each of its accepted ancestors."""
    nodes = profile.nodes
    first = np.searchsorted(nodes.step, nodes.step)
    n = 0
    for i in np.flatnonzero(nodes.verified):
        parent = nodes.parent[i]
        while parent >= 0:
            n += int(nodes.accepted[first[i] + parent])
            parent = nodes.parent[first[i] + parent]
    return n


def test_a_conversation_is_several_sequences(tiny: Tiny) -> None:
    model = Model(tiny(**SPEC))
    session = model.session()
    with model.profile() as run:
        for _ in range(2):
            session.prefill(PROMPT)
            for _ in range(3):
                session.step()
        session.truncate(len(session) - 1)
        session.step()
        session.step()
    trace = run.profile.speculation_trace()
    assert [s.n_positions for s in trace.sequences] == [2, 2, 1]
    for sequence in trace.sequences:
        sequence.to_core(trace.n_experts, trace.n_vocab)


# ---- Conclusions


def test_the_summary_of_a_run_from_disk(sample: Profile) -> None:
    assert find_limit(sample).name == "disk"
    advice = sample.advise()
    text = sample.summary()
    assert "waiting for experts from disk" in text
    assert "What holds it back: the disk" in text
    assert len(text.splitlines()) < 50
    assert max(len(line) for line in text.splitlines()) <= 100
    assert advice["changes"][0]["gain"] > 1.1
    assert advice["changes"] == sorted(advice["changes"], key=lambda change: -change["gain"])
    assert "--ram" in str(advice["changes"]) or "more RAM" in str(advice["changes"])
    json.dumps(sample.facts)


def test_a_profile_without_steps(tiny: Tiny) -> None:
    model = Model(tiny(**SPEC))
    with model.profile() as run:
        pass
    profile = run.profile
    assert len(profile.steps) == 0
    assert profile.advise()["changes"] == []
    assert "no token was decoded" in profile.summary()
    assert profile.reuse_distances().size == 0
