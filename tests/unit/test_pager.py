"""The expert pager: memory, hints, faults, records, errors. CASES E4, E5, E11, E13 to E15, R3, R4, R7."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from expertree import Model, _core
from expertree._core import _testing
from expertree.expert_record import Costs, ExpertRecord, load_record, record_path, save_record
from expertree.memory_size import parse_budget, parse_size
from tiny_model import TinyModel
from waiting import wait_until

TOKENS = np.random.default_rng(5).integers(0, 96, 40).astype(np.int32)
CHAIN = np.arange(-1, len(TOKENS) - 1, dtype=np.int32)
SPEC: dict[str, Any] = {"arch": "qwen3moe", "format": "Q8_0"}
Tiny = Callable[..., Path]


def load(path: Path, faults: dict[str, int] | None = None, **options: Any) -> Any:
    rules = _testing.Faults()
    for name, value in {"descriptor": True, "first_fault": 200, **(faults or {})}.items():
        setattr(rules, name, value)
    return _testing.load_paged(path.as_posix(), faults=rules, **options)


def session(model: Any) -> Any:
    return _core.Session(model, 4096, _core.SamplerOptions())


def run(model: Any) -> np.ndarray:
    logits: np.ndarray = session(model).evaluate(TOKENS, CHAIN)[0]
    return logits


def few_slots(path: Path, n: int = 3) -> int:
    return n * int(load(path).experts.slot_bytes[0])


# ---- Faults


@pytest.mark.parametrize("reader", ["auto", "threads"])
@pytest.mark.parametrize("descriptor", [True, False])
def test_one_read_in_many_fails_and_the_next_request_is_right(reader: str, descriptor: bool, tiny: Tiny) -> None:
    """One read in 31 fails (a single token needs a dozen): errors name file and offset, nothing else suffers."""
    path = tiny(**SPEC)
    expected = Model(path, ram="all").logits(TOKENS)
    faults = {"fail_every": 31, "descriptor": descriptor}
    model = load(path, faults, budget=few_slots(path), reader=reader, use_cached=False)
    s = session(model)
    n_failed = n_right = 0
    for _ in range(12):
        row = 0
        while row < len(TOKENS):
            try:
                logits = s.evaluate(TOKENS[row : row + 1], CHAIN[:1])[0]
            except expertree.DeviceError as error:
                assert str(path) in str(error)
                assert "at byte" in str(error)
                n_failed += 1
                continue
            assert (logits == expected[row]).all()
            s.commit(np.zeros(1, np.int32))
            row += 1
            n_right += 1
        s.truncate(0)
    assert n_failed > 10
    assert n_right == 12 * len(TOKENS)
    assert model.experts.stats["failed_reads"] >= n_failed


def test_short_and_stalled_reads_are_only_slow(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    expected = Model(path, ram="all").logits(TOKENS)
    faults = {"max_read_bytes": 1000, "delay_every": 50, "delay_us": 50_000}
    for use_cached in (True, False):
        model = load(path, faults, budget=few_slots(path), use_cached=use_cached)
        assert (run(model) == expected).all()
        assert model.experts.stats["failed_reads"] == 0
        assert model.experts.stats["wait_seconds"] > 0.05


def test_ctrl_c_while_a_read_stalls(tiny: Tiny) -> None:
    """H8: cancelling ends the wait and not the read; the session is as it was, and runs when the disk is back."""
    path = tiny(**SPEC)
    expected = Model(path, ram="all").logits(TOKENS)
    # Of the reads of the last experts one takes three seconds.
    model = load(path, {"delay_every": 7, "delay_us": 3_000_000, "first_fault": 60}, use_cached=False)
    s = session(model)

    def is_reading() -> bool:
        return bool((model.experts.states == 1).any())

    def cancel() -> None:
        for _ in range(2):  # not a read that is on its way as usual
            wait_until(is_reading)
            time.sleep(0.2)
        s.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(expertree.Cancelled, match="stopped on request"):
        s.evaluate(TOKENS, CHAIN)
    assert is_reading()
    thread.join()
    assert (s.evaluate(TOKENS, CHAIN)[0] == expected).all()
    assert model.experts.stats["wait_seconds"] > 1


@pytest.mark.parametrize("what", ["truncated", "rewritten", "deleted"])
def test_a_file_that_changes_while_it_is_open(what: str, tmp_path: Path) -> None:
    path = TinyModel(**SPEC).write(tmp_path / "m.gguf")
    expected = Model(path, ram="all").logits(TOKENS)
    model = load(path, budget=few_slots(path))
    size = path.stat().st_size
    if what == "deleted":
        path.unlink()
        assert (run(model) == expected).all()  # it lives as long as it is open
        return
    if what == "truncated":
        os.truncate(path, size // 2)
    else:
        time.sleep(0.02)  # the clock of the file system is coarse
        with path.open("r+b") as file:
            file.seek(size - 1)
            file.write(b"\x01")
    for _ in range(3):
        with pytest.raises(expertree.DeviceError, match=r"m\.gguf'?: the file"):
            run(model)


def test_experts_in_memory_outlive_their_file(tmp_path: Path) -> None:
    path = TinyModel(**SPEC).write(tmp_path / "m.gguf")
    model = Model(path, ram="all")
    expected = model.logits(TOKENS)
    model.load_experts()
    path.write_bytes(b"")
    assert (model.logits(TOKENS) == expected).all()


def test_loading_experts_says_what_failed(tmp_path: Path) -> None:
    path = TinyModel(**SPEC, n_experts=64).write(tmp_path / "m.gguf")
    model = load(path, {"fail_every": 7}, use_cached=False)
    with pytest.raises(expertree.DeviceError, match="at byte"):
        model.experts.fill()


def test_ending_a_model_while_it_reads(tiny: Tiny) -> None:
    for _ in range(20):
        load(tiny(**SPEC), {"delay_every": 1, "delay_us": 2000, "first_fault": 0}, background=True, use_cached=False)


# ---- What it holds


def test_r7_an_expert_is_three_whole_reads(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    model = load(path, budget=few_slots(path))
    run(model)
    stats = model.experts.stats
    tensors = [t for t in _core.GgufReader(path).tensors if "_exps" in t.name]
    one = sum(t.size_bytes for t in tensors) // (2 * 8)
    assert stats["bytes_read"] == stats["reads"] * one
    assert stats["reads"] == stats["misses"]


def test_a_prefill_reads_each_expert_at_most_once_per_layer(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=32)
    model = load(path, budget=few_slots(path))
    run(model)
    assert model.experts.stats["reads"] <= 2 * 32
    assert model.experts.stats["reads"] == model.experts.stats["misses"]


def test_the_background_fills_what_has_room_and_evicts_nothing(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    for budget, n in ((few_slots(path, 5), 5), (2**63, 16)):
        experts = load(path, budget=budget).experts
        experts.fill()
        assert (experts.states == 2).sum() == n == experts.stats["resident"]
        assert experts.stats["evictions"] == 0
    model = Model(path)
    model.load_experts()
    assert model.experts["resident"] == 16
    before = model.experts["reads"]
    model.logits(TOKENS)
    assert model.experts["reads"] == before == 16


def test_states_and_hints(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    experts = load(path).experts
    assert (experts.states == 0).all()
    experts.hint(1, [3, 5], 1.0)
    wait_until(lambda: (experts.states == 2).sum() >= 2)
    assert np.argwhere(experts.states == 2).tolist() == [[1, 3], [1, 5]]
    experts.hint(1, [3], 1.0)
    assert experts.stats["hint_reads"] == 2
    with pytest.raises(IndexError):
        experts.hint(2, [0], 1.0)


def test_hints_are_used_in_time(tiny: Tiny) -> None:
    """Told before each token what it will need, the pager never has to wait; the numbers say so."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=16, n_layers=3)
    ids, _ = Model(path).routing(TOKENS)
    model = load(path)
    s = session(model)
    for row in range(len(TOKENS)):
        for layer in range(3):
            model.experts.hint(layer, ids[layer, row].tolist(), float(-layer))
        needed = ids[:, row]
        wait_until(lambda needed=needed: all((model.experts.states[i, needed[i]] == 2).all() for i in range(3)))
        s.evaluate(TOKENS[row : row + 1], CHAIN[:1])
        s.commit(np.zeros(1, np.int32))
    stats = model.experts.stats
    assert stats["misses"] == stats["late"] == 0
    assert stats["hints_in_time"] == stats["hint_reads"] > 10


def test_the_next_layers_router_is_asked_ahead(tmp_path: Path) -> None:
    """With the same router in each layer and experts that hardly add anything the guess is right nearly always."""
    spec = TinyModel(arch="qwen3moe", format="F32", n_experts=16, n_layers=6)
    tensors = spec.float_tensors()
    for layer in range(6):
        spec.tensors[f"blk.{layer}.ffn_gate_inp.weight"] = tensors["blk.0.ffn_gate_inp.weight"]
        spec.tensors[f"blk.{layer}.ffn_norm.weight"] = tensors["blk.0.ffn_norm.weight"]
        for name in ("ffn_down_exps", "attn_output"):
            spec.tensors[f"blk.{layer}.{name}.weight"] = tensors[f"blk.{layer}.{name}.weight"] * np.float32(0.01)
    path = spec.write(tmp_path / "m.gguf")
    expected = Model(path, ram="all").logits(TOKENS)
    model = load(path, read_ahead=True, budget=few_slots(path, 90))
    s = session(model)
    for row in range(len(TOKENS)):
        assert (s.evaluate(TOKENS[row : row + 1], CHAIN[:1])[0] == expected[row]).all()
        s.commit(np.zeros(1, np.int32))
    stats = model.experts.stats
    assert stats["hint_reads"] > 20
    assert stats["hints_in_time"] + stats["hints_late"] > 0.9 * stats["hint_reads"]


def test_e13_wrong_hints_switch_themselves_off(tiny: Tiny) -> None:
    """Each step is preceded by hints for experts that it does not use."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=64, n_layers=2)
    slot = int(load(path).experts.slot_bytes[0])
    model = load(path, budget=24 * slot)
    ids, _ = Model(path).routing(TOKENS)
    rng = np.random.default_rng(0)
    s = session(model)
    for _ in range(6):
        for row in range(len(TOKENS)):
            for layer in range(2):
                wrong = np.setdiff1d(np.arange(64), ids[layer, row])
                model.experts.hint(layer, rng.choice(wrong, 4, replace=False).tolist(), 1.0)
            time.sleep(0.001)
            s.evaluate(TOKENS[row : row + 1], CHAIN[:1])
            s.commit(np.zeros(1, np.int32))
        s.truncate(0)
    stats = model.experts.stats
    assert stats["hints_wasted"] > 40
    assert stats["hint_closings"] >= 1
    assert stats["hint_reads"] < stats["hints"] / 2


def test_memory_stays_in_the_budget(tmp_path: Path) -> None:
    """Peak resident memory of a process with few slots, against one that keeps all."""
    spec = TinyModel(arch="qwen3moe", format="Q8_0", n_embd=256, n_ff=256, n_experts=128, n_layers=4)
    path = spec.write(tmp_path / "m.gguf")
    script = (
        "import sys, numpy as np, expertree\n"
        "model = expertree.Model(sys.argv[1], ram=sys.argv[2], threads=2)\n"
        "model.load_experts()\n"
        "for seed in range(6):\n"
        "    model.logits(np.random.default_rng(seed).integers(0, 96, 64))\n"
        "peak = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')]\n"
        "print(int(peak[0]) * 1024, model.experts['budget_bytes'])\n"
    )

    def peak(ram: str) -> tuple[int, int]:
        done = subprocess.run([sys.executable, "-c", script, path, ram], capture_output=True, text=True, check=True)
        rss, budget = done.stdout.split()
        return int(rss), int(budget)

    small, all_of_it = peak("8MiB"), peak("all")
    assert small[1] <= 8 * 2**20 < all_of_it[1]
    saved = all_of_it[1] - small[1]
    assert saved > 80 * 2**20
    assert all_of_it[0] - small[0] > 0.9 * saved


def test_e11_experts_smaller_than_a_sector(tmp_path: Path) -> None:
    path = TinyModel(arch="qwen3moe", format="Q8_0", n_embd=32, n_ff=32, n_heads=2).write(tmp_path / "m.gguf")
    expected = Model(path, ram="all").logits(TOKENS)
    assert (run(load(path, budget=few_slots(path))) == expected).all()


# ---- Policies and sessions


def test_e4_sessions_share_the_models_cache(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    model = load(path)
    first = run(model)
    reads = model.experts.stats["reads"]
    assert (run(model) == first).all()
    assert model.experts.stats["reads"] == reads


def test_e5_policies_change_while_a_session_runs(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=16)
    expected = Model(path, ram="all").logits(TOKENS)
    model = load(path, budget=few_slots(path, 5), background=True)
    stop = threading.Event()

    def change() -> None:
        names = ["lru", "lfu-decay", "layer-lfu"]
        for i in range(10**9):
            if stop.is_set():
                return
            model.experts.set_policy(names[i % 3])
            _ = model.experts.stats, model.experts.states, model.experts.profile()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        s = session(model)
        for _ in range(5):
            for row in range(len(TOKENS)):
                assert (s.evaluate(TOKENS[row : row + 1], CHAIN[:1])[0] == expected[row]).all()
                s.commit(np.zeros(1, np.int32))
            s.truncate(0)
    finally:
        stop.set()
        thread.join()


def test_auto_takes_the_policy_that_would_have_done_best(tiny: Tiny) -> None:
    """A few experts are used all the time, the others in turn: LRU would lose the few."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=16)
    model = load(path, budget=few_slots(path, 6))
    s = session(model)
    for _ in range(8):
        for row in range(len(TOKENS)):
            s.evaluate(TOKENS[row : row + 1], CHAIN[:1])
            s.commit(np.zeros(1, np.int32))
        s.truncate(0)
    assert model.experts.stats["policy"] in ("layer-lfu", "lfu-decay")


def test_a_trace_of_a_run_replays_to_the_same_counts(tiny: Tiny) -> None:
    """What the simulation says is what the pager did."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=16)
    for policy in ("lru", "lfu-decay", "layer-lfu"):
        model = load(path, budget=few_slots(path, 5), policy=policy)
        model.experts.start_trace()
        s = session(model)
        for row in range(len(TOKENS)):
            s.evaluate(TOKENS[row : row + 1], CHAIN[:1])
            s.commit(np.zeros(1, np.int32))
        trace = model.experts.take_trace()
        stats = model.experts.stats
        assert trace.n_steps == len(TOKENS)
        got = _core.simulate_cache(trace, model.experts.class_of_layer, model.experts.slots, policy)
        assert (got["uses"], got["hits"]) == (stats["uses"], stats["hits"])
        bound = _core.simulate_cache(trace, model.experts.class_of_layer, model.experts.slots, "belady")
        assert bound["hits"] >= got["hits"]


def test_costs_are_measured(tmp_path: Path) -> None:
    path = TinyModel(arch="qwen3moe", format="Q8_0", n_embd=256, n_ff=256, n_experts=64).write(tmp_path / "m.gguf")
    model = load(path, budget=few_slots(path, 8), use_cached=False)
    s = session(model)
    for _ in range(30):
        s.evaluate(TOKENS, CHAIN)
        s.rollback()
        s.evaluate(TOKENS[:1], CHAIN[:1])
        s.rollback()
    costs = model.experts.costs
    assert 1e6 < costs["read_bytes_per_second"] < 1e11
    assert 1e-7 < costs["run_base_seconds"] + costs["run_row_seconds"] < 0.01


# ---- Records


def test_a_record_makes_the_next_start_warm(tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_CACHE", str(tmp_path))
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=32)
    size = few_slots(path, 12)
    model = Model(path, ram=size, record=True)
    ids, _ = model.routing(TOKENS)
    model.save_record()
    saved = load_record(record_path(path))
    assert saved is not None
    assert saved.rates.shape == (2, 32)
    used = np.zeros((2, 32), bool)
    for layer in range(2):
        used[layer, ids[layer]] = True
    assert ((saved.rates > 0) == used).all()
    assert saved.n_rows == model.experts["rows"]
    warm = Model(path, ram=size, record=True)
    warm.load_experts()
    resident = warm._core.experts.states == 2
    assert resident.sum() == 12
    assert saved.rates[resident].min() >= np.sort(saved.rates.ravel())[-12:].min()
    assert Model(path, ram=size, record=True, policy="pinned").experts["policy"] == "pinned"


def test_a_short_run_keeps_what_longer_ones_measured(tmp_path: Path, tiny: Tiny) -> None:
    target = tmp_path / "r.json"
    earlier = Costs(1e9, 1e-4, 1e-5, 0.01)
    save_record(target, ExpertRecord(np.ones((2, 8), np.float32), earlier))
    Model(tiny(**SPEC), record=target).save_record()  # nothing was run
    saved = load_record(target)
    assert saved is not None and saved.costs == earlier
    now = Costs(run_base_seconds=2e-4, link_bytes_per_second=5.0).completed_by(earlier)
    assert now == Costs(1e9, 2e-4, 0.0, 0.01, 5.0)


def test_a_record_says_how_much_it_saw(tmp_path: Path, tiny: Tiny) -> None:
    path, target = tiny(**SPEC), tmp_path / "r.json"
    model = Model(path, record=target)
    model._core.experts.start_trace()
    model.generate([1], max_tokens=20, ignore_eos=True)
    rates, reuse = model._core.experts.take_trace().use(100)
    model.save_record()
    first = load_record(target)
    assert first is not None and first.reuse is not None
    assert first.n_rows == model.experts["rows"] == 20
    np.testing.assert_allclose(first.rates.ravel(), rates, rtol=1e-5)
    np.testing.assert_array_equal(first.reuse.ravel(), np.array(reuse, np.float32))
    Model(path, record=target).save_record()  # nothing was run: nothing more is known
    same = load_record(target)
    assert same is not None and same.n_rows == first.n_rows
    again = Model(path, record=target)
    again.generate([4], max_tokens=31, ignore_eos=True)
    again.save_record()
    both = load_record(target)
    assert both is not None and both.reuse is not None
    # 31 rows, and 20 that weigh as 64: between what each says alone and what both would.
    assert both.n_rows == pytest.approx(95**2 / (31 + 64**2 / 20))
    np.testing.assert_allclose(both.reuse.sum(axis=1), 1, rtol=1e-5)
    assert np.abs(both.reuse - first.reuse).max() > 0.001


def test_records_of_earlier_versions(tmp_path: Path, tiny: Tiny) -> None:
    target = tmp_path / "r.json"
    rates = np.full((2, 8), 0.25, np.float32)
    save_record(target, ExpertRecord(rates, Costs(1e9), 7.0, rates))
    body = json.loads(target.read_text())
    for name in ("n_steps", "reuse", "reuse_crc32"):
        del body[name]
    target.write_text(json.dumps(body))
    old = load_record(target)
    assert old is not None
    assert (old.n_rows, old.reuse, old.costs) == (64.0, None, Costs(1e9))
    model = Model(tiny(**SPEC), record=target)
    model.generate([1, 2, 3], max_tokens=8, ignore_eos=True)
    model.save_record()
    new = load_record(target)
    assert new is not None and new.reuse is not None


def test_damaged_and_foreign_records(tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_CACHE", str(tmp_path))
    path = tiny(**SPEC)
    ones = np.ones((2, 8), np.float32)
    good = ExpertRecord(ones, Costs(1e9, 1e-4, 1e-5, 0.01), 44.0, 2 * ones)
    target = tmp_path / "r.json"
    save_record(target, good)
    text = target.read_text()
    assert load_record(target).costs == good.costs
    for bad in (
        "",
        "[]",
        "{}",
        text[:-20],
        text.replace('"n_layers": 2', '"n_layers": 4'),
        text.replace("AAC", "AAD", 1),
        text.replace("AAAAQAAA", "AAAAQBAA", 1),  # of the reuse
        text.replace('"n_steps": 44.0', '"n_steps": -1'),
        text.replace('"n_steps": 44.0', '"n_steps": "many"'),
        text.replace('"n_steps": 44.0', '"n_steps": NaN'),
        text.replace('"reuse_crc32"', '"crc"'),
    ):
        target.write_text(bad)
        with pytest.raises(expertree.ModelFormatError, match=r"r\.json"):
            load_record(target)
        with pytest.raises(expertree.ModelFormatError, match=r"r\.json"):
            Model(path, record=target)
    own = record_path(path)
    own.parent.mkdir(parents=True)
    own.write_text("rubbish")
    Model(path, record=True).save_record()
    assert load_record(own) is not None
    save_record(target, ExpertRecord(np.ones((3, 8), np.float32)))
    with pytest.raises(expertree.InvalidRequestError, match="24 experts and the model has 16"):
        Model(path, record=target)
    with pytest.raises(expertree.InvalidRequestError, match="record"):
        Model(path).save_record()


def test_disk_full_for_the_record_leaves_the_old_one(tmp_path: Path) -> None:
    """A limit on the size of files that a process writes stands for the full disk."""
    target = tmp_path / "r.json"
    save_record(target, ExpertRecord(np.ones((2, 8), np.float32)))
    before = target.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(expertree.DeviceError, match=r"r\.json: cannot save"):
            save_record(target, ExpertRecord(np.ones((90, 128), np.float32)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_killed_while_saving_the_record_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    script = (
        "import sys, numpy as np\n"
        "from expertree.expert_record import ExpertRecord, save_record\n"
        "while True:\n"
        "    for n in (1, 2, 3):\n"
        "        save_record(sys.argv[1], ExpertRecord(np.full((64, 128), n, np.float32)))\n"
    )
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", script, target])
        wait_until(target.exists)
        time.sleep(np.random.default_rng().uniform(0.0, 0.1))
        process.kill()
        process.wait()
        record = load_record(target)
        assert record is not None
        assert np.unique(record.rates).size == 1


def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path, tiny: Tiny) -> None:
    """kill -9 of a process that pages, drafts and saves its record: the file stays as it was, the next start answers
    the same, and what record there is can be read."""
    path, record = tiny(**SPEC), tmp_path / "record.json"
    before = path.read_bytes()
    script = (
        "import sys, expertree\n"
        "while True:\n"
        "    model = expertree.Model(sys.argv[1], ram=int(sys.argv[2]), threads=2, record=sys.argv[3])\n"
        "    print(model.generate([1, 2, 3], max_tokens=40, ignore_eos=True, draft='ngram').tokens, flush=True)\n"
        "    model.save_record()\n"
    )
    rng = np.random.default_rng()
    slots = few_slots(path)
    answers = set()
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", script, path, str(slots), record], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        answers.add(process.stdout.readline())
        time.sleep(rng.uniform(0.0, 0.2))
        process.kill()
        whole_lines = process.stdout.read().splitlines(keepends=True)
        answers.update(line for line in whole_lines if line.endswith("\n"))
        process.stdout.close()
        process.wait()
    assert len(answers) == 1
    assert path.read_bytes() == before
    if record.exists():
        assert load_record(record) is not None


def test_a_record_is_of_one_file(tiny: Tiny, tmp_path: Path) -> None:
    path = tiny(**SPEC)
    copy = tmp_path / "other-name.gguf"
    shutil.copy(path, copy)
    assert record_path(copy) == record_path(path)
    with copy.open("ab") as file:
        file.write(b"\0")
    assert record_path(copy) != record_path(path)


# ---- Budgets


@pytest.mark.parametrize(
    ("text", "size"),
    [("6GiB", 6 * 2**30), ("800MiB", 800 * 2**20), ("1.5GB", 1_500_000_000), ("2G", 2**31), ("4096", 4096), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_budget(text).size_bytes == size


@pytest.mark.parametrize("ram", ["", "lots", "-1", -1, True, 1.5, None, 2**70, "6 GiB each"])
def test_budgets_that_are_none(ram: Any, tiny: Tiny) -> None:
    with pytest.raises(expertree.InvalidRequestError, match="ram is"):
        Model(tiny(**SPEC), ram=ram)


def test_budgets(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    assert Model(path).experts["resident"] <= Model(path).experts["slots"] == 16
    everything = Model(path, ram="all").experts
    assert everything["budget_bytes"] == everything["all_bytes"]
    part = Model(path, ram=100_000)
    assert part.experts["budget_bytes"] <= 100_000 < everything["all_bytes"]
    assert part.memory()["expert_bytes"] == part.experts["budget_bytes"]
    assert part.memory(1000)["kv_bytes"] > 1.9 * part.memory(500)["kv_bytes"]
    with pytest.raises(expertree.OutOfMemoryError, match=rf"works with {everything['least_bytes']} bytes"):
        Model(path, ram=1)
    with pytest.raises(expertree.InvalidRequestError, match="layer-lfu"):
        Model(path, policy="fifo")
    with pytest.raises(expertree.InvalidRequestError, match="profile"):
        Model(path, policy="pinned")


def test_r4_a_dense_model_has_no_experts_to_page(tiny: Tiny) -> None:
    with pytest.warns(UserWarning, match="has no experts"):
        model = Model(tiny(arch="llama"), ram="1MiB")
    assert model.experts == {}
    assert model.memory()["expert_bytes"] == 0
    model.load_experts()
