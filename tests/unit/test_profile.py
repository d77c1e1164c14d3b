"""The profiler: zones, counters, bytes, and that it changes nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import profiled_model
import pytest
from expertree import InvalidRequestError, Model, ScriptedDrafter, _core
from expertree.profile import KINDS, ZONES, Profile
from waiting import wait_until

SPEC: dict[str, Any] = {**profiled_model.SPEC, "n_layers": 4}
PROMPT = np.random.default_rng(3).integers(0, 96, 40).tolist()
Tiny = Callable[..., Path]
READING = 1  # of the states of experts
CALLS: list[float] = []  # seconds of each call of the last run, by the caller's clock


def few(path: Path, share: float) -> int:
    return int(share * Model(path).experts["all_bytes"])


def run(model: Model, n: int = 12, **settings: Any) -> tuple[Profile, list[int]]:
    CALLS.clear()
    with model.profile() as recording:
        session = model.session(**settings)
        with timed():
            session.prefill(PROMPT)
        while len(session) < len(PROMPT) + n:
            with timed():
                session.step(len(PROMPT) + n - len(session))
        # Reads ahead may be under way still.
        wait_until(lambda: model._core.experts is None or not (model._core.experts.states == READING).any())
    return recording.profile, session.tokens


@contextmanager
def timed() -> Iterator[None]:
    start = time.perf_counter()
    yield
    CALLS.append(time.perf_counter() - start)


@pytest.mark.parametrize("settings", [{}, {"draft": "ngram", "select": "all"}], ids=["plain", "ngram"])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_zones_fill_the_wall_time(settings: dict[str, Any], share: float, tiny: Tiny) -> None:
    path = tiny(**SPEC)
    model = Model(path, ram=few(path, share))
    profile, _ = run(model, **settings)
    s = profile.steps
    sums = s.zone_seconds[:, :-1].sum(axis=1)
    assert (sums <= s.wall * 1.0001 + 1e-6).all()
    for kind in set(s.kind.tolist()):
        of_kind = s.kind == kind
        assert sums[of_kind].sum() > 0.95 * s.wall[of_kind].sum(), KINDS[kind]
    for zone in ("attention", "router", "experts", "head", "sample"):
        assert s.seconds(zone)[s.of_kind("decode", "speculate")].sum() > 0, zone
    # The caller's clock agrees, as far as a busy machine lets it; tools/check_profiler.py shows how far.
    assert (s.wall <= CALLS).all()
    assert np.median(s.wall / CALLS) >= 0.7
    # From the first step to the last everything is in a step or between two.
    ends = s.start + s.wall
    assert s.zone_seconds.sum() == pytest.approx(ends[-1], rel=0.01)


def test_layers_and_events_are_parts_of_the_steps(tiny: Tiny) -> None:
    profile, _ = run(Model(tiny(**SPEC)), draft="ngram")
    s, e = profile.steps, profile.events
    for zone in ("attention", "router", "experts", "wait"):
        z = ZONES.index(zone)
        assert profile.layers.zone_seconds[:, :, z].sum() == pytest.approx(s.seconds(zone).sum(), rel=1e-6)
    assert profile.layers.zone_seconds[:, :, ZONES.index("head")].sum() == 0
    assert (e.end > e.begin).all()
    assert (e.begin[1:] >= e.end[:-1] - 1e-9).all()
    assert (e.begin >= s.start[e.step] - 1e-9).all()
    assert (e.end <= (s.start + s.wall)[e.step] + 1e-9).all()
    assert set(e.layer.tolist()) == {-1, 0, 1, 2, 3}


@pytest.mark.parametrize("arch", ["llama", "qwen2moe", "lfm2moe", "qwen3next"])
def test_every_architecture_has_zones(arch: str, tiny: Tiny) -> None:
    profile, _ = run(Model(tiny(arch=arch)), n=3)
    s = profile.steps
    decoded = s.of_kind("decode")
    assert s.zone_seconds[decoded, :-1].sum() > 0.95 * s.wall[decoded].sum()
    has_experts = arch != "llama"
    assert (s.seconds("experts")[decoded].sum() > 0) == has_experts
    assert (s.seconds("dense")[decoded].sum() > 0) == (arch != "olmoe")
    assert profile.facts["model"]["n_moe_layers"] == profile.experts.uses.shape[0]


def test_the_text_is_the_same_and_steps_add_up(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    plain = Model(path).generate(PROMPT, max_tokens=20).tokens
    model = Model(path, ram=few(path, 0.3))
    profile, tokens = run(model, draft=ScriptedDrafter(PROMPT + plain, rates=(0.8,)), select="all")
    assert tokens[len(PROMPT) :] == plain[: len(tokens) - len(PROMPT)]
    s, nodes = profile.steps, profile.nodes
    assert s.tokens.sum() == len(tokens)
    assert s.last_token[-1] == tokens[-1]
    drafted = s.of_kind("speculate") & (s.rows > 0)
    assert (s.tokens[drafted] == s.accepted[drafted] + 1).all()
    assert (s.rows[drafted] == s.verified[drafted] + 1).all()
    assert s.drafted.sum() == len(nodes)
    assert s.accepted.sum() == nodes.accepted.sum() > 0
    assert (s.accepted_by_depth.sum(axis=1) == s.accepted).all()
    assert (s.verified_by_depth.sum(axis=1) == s.verified).all()
    assert not (nodes.accepted & ~nodes.verified).any()
    assert [KINDS[k] for k in s.kind[:2]] == ["prefill", "speculate"]


def test_routing_is_the_models_own(tiny: Tiny) -> None:
    model = Model(tiny(**SPEC))
    profile, tokens = run(model)
    ids = model.routing(tokens[:-1])[0]  # the last one has not been run
    r = profile.routing
    assert r.token.tolist() == tokens[:-1]
    whole = r.experts.transpose(1, 0, 2)
    run_layers = whole >= 0
    assert (whole[run_layers] == ids[run_layers]).all()
    assert run_layers[:-1].all() and run_layers[-1, len(PROMPT) - 1 :].all()  # a prompt's last layer is left out
    counts = np.stack([np.bincount(layer[layer >= 0], minlength=16) for layer in whole])
    assert (profile.experts.rows == counts).all()


def test_counters_are_the_pagers(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    model = Model(path, ram=few(path, 0.3))
    model.load_experts()
    before = model.experts
    profile, _ = run(model)
    after, s, x = model.experts, profile.steps, profile.experts
    for name, column, table in (
        ("hits", s.experts_hit, x.hits),
        ("late", s.experts_late, x.late),
        ("misses", s.experts_missed, x.misses),
    ):
        assert column.sum() == table.sum() == after[name] - before[name], name
    assert (x.uses == x.hits + x.late + x.misses).all()
    assert s.prefetched.sum() == after["hint_reads"] - before["hint_reads"]
    assert profile.reads.bytes[~profile.reads.failed].sum() == after["bytes_read"] - before["bytes_read"]
    assert x.initial.sum() == after["slots"] - 0 == before["resident"]
    assert 0 < x.resident.mean() < 0.5
    assert s.seconds("wait").sum() >= after["wait_seconds"] - before["wait_seconds"] - 1e-4
    assert (s.memory_bytes[:, 1] <= profile.facts["budget"]["bytes"]).all()


def disk_bytes_of(path: Path, model: Model) -> tuple[int, int, int]:
    """What was read from disk: by our count, over-read of it, and by the operating system's."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    before = model.experts
    profile, _ = run(model, n=30)
    os.close(file)
    after = model.experts
    read = profile.facts["totals"]["process_read_bytes"]
    if read is None:
        pytest.skip("the system does not count what a process reads (/proc/self/io)")
    counted, over = (after[name] - before[name] for name in ("bytes_from_disk", "bytes_overread"))
    assert counted - over + after["bytes_from_cache"] - before["bytes_from_cache"] == (
        after["bytes_read"] - before["bytes_read"]
    )
    return counted, over, read


def test_disk_bytes_are_those_of_the_operating_system(tiny: Tiny) -> None:
    """Over-read is counted as such: experts do not begin where blocks do."""
    path = tiny(**{**SPEC, "n_experts": 32})
    if _core.direct_read_alignment(str(path)) == 1:
        pytest.skip(f"{path}: this file system has no direct reads")
    counted, over, read = disk_bytes_of(path, Model(path, ram=few(path, 0.15)))
    assert over > 0
    assert counted == pytest.approx(read, rel=0.02)


def test_two_sessions_and_threads(tiny: Tiny) -> None:
    model = Model(tiny(**SPEC))
    sessions = [model.session(draft=draft) for draft in (None, "ngram")]
    sessions[0].set_label("first", "chat")

    both = threading.Barrier(2)  # a thread that begins after another has ended may be given its identity

    def work(session: expertree.Session) -> None:
        both.wait()
        session.prefill(PROMPT)
        for _ in range(4):
            session.step()
        both.wait()

    with model.profile() as recording:
        threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    profile = recording.profile
    assert len(profile.facts["sessions"]) == 2
    labels = {facts["label"]: facts["draft"] for facts in profile.facts["sessions"]}
    assert labels == {"first": None, "": "ngram"}
    assert np.bincount(profile.steps.session).tolist() == [5, 5]
    assert set(profile.events.thread.tolist()) == {0, 1}


def test_sessions_that_share_calls(tiny: Tiny) -> None:
    """A shared call is a step of each; together they take its time, and the pager's counts are all there."""
    path = tiny(**SPEC)
    model = Model(path, ram=few(path, 0.3))
    sessions = [model.session(draft=draft) for draft in (None, "ngram", None)]
    for i, session in enumerate(sessions):
        session.prefill(PROMPT[i:])
        session.step()
    engine = expertree.Engine(model)
    before = model.experts
    CALLS.clear()
    with model.profile() as recording:
        for _ in range(5):
            with timed():
                engine.step(sessions)
    profile, after = recording.profile, model.experts
    s = profile.steps
    assert s.session.tolist() == [0, 1, 2] * 5
    assert s.rows.sum() == len(profile.routing)
    assert s.experts_missed.sum() == after["misses"] - before["misses"]
    assert s.experts_touched.sum() == profile.experts.uses.sum()
    starts = np.append(s.start, s.start[-1] + s.wall[-1])
    assert (s.wall > 0).all()
    assert (np.diff(starts) >= s.wall - 1e-9).all()
    sums = s.zone_seconds[:, :-1].sum(axis=1)
    assert np.abs(sums - s.wall).max() < 1e-6
    assert 0.7 * sum(CALLS) <= s.wall.sum() <= sum(CALLS)
    assert profile.speculation_trace().n_experts == 16
    assert len(profile.speculation_trace().sequences) == 3


def test_one_profile_at_a_time(tiny: Tiny) -> None:
    model = Model(tiny(**SPEC))
    with model.profile() as recording:
        with pytest.raises(InvalidRequestError, match="still running"):
            _ = recording.profile
        with pytest.raises(InvalidRequestError, match="running already"), model.profile():
            pass
        session = model.session()
        with pytest.raises(InvalidRequestError):
            session.prefill([10**6])
        session.prefill(PROMPT)
    assert len(recording.profile.steps) == 1  # a failed call is none
    session.step()
    assert len(recording.profile.steps) == 1
    with model.profile() as again:
        session.evaluate([1, 2])
    assert [KINDS[k] for k in again.profile.steps.kind] == ["evaluate"]
    assert again.profile.steps.rows.tolist() == [3]  # the token just sampled, and two


def test_events_are_bounded(tiny: Tiny) -> None:
    model = Model(tiny(**SPEC))
    with model.profile(max_events=20) as recording:
        model.generate(PROMPT, max_tokens=8)
    profile = recording.profile
    assert len(profile.events) <= 20
    assert profile.facts["totals"]["events_dropped"] > 0
    assert profile.steps.tokens.sum() == len(PROMPT) + 8
