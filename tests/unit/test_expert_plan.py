"""What `inspect` and tools/pager_sim.py say of budgets, against what the pager does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expertree import Model, OutOfMemoryError, _core
from expertree.expert_plan import LayerSlots, SizeClasses, layer_slots, predict
from expertree.expert_record import Costs, ExpertRecord, record_path, save_record
from expertree.inspect_model import describe
from tiny_model import MOE_ARCHITECTURES, TinyModel

ROOT = Path(__file__).resolve().parents[2]
SIM = ROOT / "tools/pager_sim.py"
Tiny = Callable[..., Path]


def slots_of(path: Path) -> list[LayerSlots]:
    return layer_slots(_core.GgufReader(path).tensors, _core.direct_read_alignment(str(path)))


@pytest.mark.parametrize(
    "fields",
    [{"arch": arch, "format": "Q8_0"} for arch in MOE_ARCHITECTURES]
    + [
        {"arch": "qwen3moe", "format": "Q4_K", "n_layers": 3, "formats": {"blk.1.ffn_down_exps.weight": "Q6_K"}},
        {"arch": "mixtral", "format": "Q4_1", "per_expert_tensors": True},
    ],
)
def test_slots_are_the_pagers(fields: dict[str, Any], tmp_path: Path) -> None:
    path = TinyModel(**fields).write(tmp_path / "m.gguf")
    model = Model(path, ram="all")
    pager, classes = model._core.experts, SizeClasses.of(slots_of(path))
    assert (classes.slot_bytes, classes.class_of_layer) == (pager.slot_bytes, pager.class_of_layer)
    assert classes.slots(2**62) == pager.slots
    half = model.experts["all_bytes"] // 2
    assert classes.slots(half) == Model(path, ram=half)._core.experts.slots


LAYERS = [LayerSlots(10, 1000, 900)] * 4


def test_predictions_by_hand() -> None:
    costs = Costs(read_bytes_per_second=9e4, run_base_seconds=0.001, run_row_seconds=0.0, step_seconds=0.02)
    nothing = np.zeros((4, 10), np.float32)
    half = predict(LAYERS, 20_000, 2, ExpertRecord(nothing, costs))
    assert (half.ram_bytes, half.resident_share, half.hit_rate) == (20_000, 0.5, 0.5)
    assert half.read_bytes_per_token == 4 * 2 * 0.5 * 900
    # Of 20 ms running experts takes 8; reading 3,600 bytes takes 40.
    assert half.tokens_per_second == pytest.approx(1 / (0.012 + 0.04))
    everything = predict(LAYERS, 10**9, 2, ExpertRecord(nothing, costs))
    assert (everything.read_bytes_per_token, everything.tokens_per_second) == (0, pytest.approx(50))
    rates = np.zeros((4, 10), np.float32)
    rates[:, :3] = 0.6
    rates[:, 3:5] = 0.1
    hot = predict(LAYERS, 12_000, 2, ExpertRecord(rates, costs, n_rows=10_000))
    assert hot.hit_rate == pytest.approx(0.9)
    reuse = np.tile(np.array([0.5, 0.4, 0.06, 0.04] + [0] * 6, np.float32), (4, 1))
    assert predict(LAYERS, 12_000, 2, ExpertRecord(rates, costs, 10_000, reuse)).hit_rate == pytest.approx(0.96)
    assert predict(LAYERS, 20_000, 2, ExpertRecord(np.ones((3, 10), np.float32), costs)).hit_rate == 0.5
    assert predict(LAYERS, 20_000, 2, None).tokens_per_second is None
    with pytest.raises(OutOfMemoryError):
        predict(LAYERS, 999, 2, None)


def test_inspect_predicts_from_the_record(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_CACHE", str(tmp_path))
    path = tiny(arch="qwen3moe", format="Q8_0")
    unknown = describe(path)
    assert [row.tokens_per_second for row in unknown.residency] == [None] * 4
    assert unknown.residency[-1].hit_rate == 1
    save_record(record_path(path), ExpertRecord(np.ones((2, 8), np.float32), Costs(1e9, 1e-5, 1e-6, 1e-3)))
    known = describe(path, budgets=[100_000, 10])
    assert len(known.residency) == 1
    speed = known.residency[0].tokens_per_second
    assert speed is not None
    assert 500 < speed < 1100
    assert any("a budget of 10 bytes" in problem for problem in known.problems)
    record_path(path).write_text("rubbish")
    assert any("delete it" in problem for problem in describe(path).problems)


def sim(*arguments: Any, status: int = 0) -> str:
    done = subprocess.run([sys.executable, SIM, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_pager_sim_records_and_replays(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_CACHE", str(tmp_path))
    path, trace = tiny(arch="qwen3moe", format="Q8_0", n_experts=16), tmp_path / "t.npz"
    assert sim("record", path, trace, "--tokens", 40).startswith("39 steps of 2 layers")
    slot = SizeClasses.of(slots_of(path)).slot_bytes[0]
    rows = [json.loads(row) for row in sim("replay", path, trace, "--ram", 6 * slot, "--json").splitlines()]
    hits = {row["policy"]: row["hits"] for row in rows}
    assert set(hits) == {"lru", "lfu-decay", "layer-lfu", "belady"}
    assert max(hits.values()) == hits["belady"] > hits["lru"]
    assert all(row["uses"] == 39 * 2 * 2 and row["steps_per_second"] is None for row in rows)
    save_record(record_path(path), ExpertRecord(np.ones((2, 16), np.float32), Costs(1e9, 1e-5, 1e-6, 1e-3)))
    shown = sim("replay", path, trace, "--policy", "pinned", "--ram", "1MiB").splitlines()
    assert shown[-1].split()[2] == "pinned"
    ids, _ = Model(path).routing(list(range(30)))
    np.savez(trace, ids=ids)
    assert "30 steps" in sim("replay", path, trace)
    assert "2 layers, the model has 3" in sim(
        "replay", tiny(arch="qwen3moe", format="Q8_0", n_experts=16, n_layers=3), trace, status=1
    )
