"""The benchmark's bookkeeping. No figure of time is checked: speed never fails a test."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import expertree
import pytest
from expertree.bench import Bench, Case, Work, default_cases, run_in_turn

Loader = Callable[..., expertree.Model]


def test_default_cases_fit_the_context() -> None:
    assert Case("prefill", 2048) in default_cases(4096)
    assert all(case.n_ctx <= 100 for case in default_cases(100))
    assert Case("verify-tree", 64, 32) in default_cases(100)


def test_bytes_and_operations_by_hand(load_tiny: Loader) -> None:
    """qwen3moe, F32, 2 layers, width 64, heads of 24, 8 experts of width 64, 96 tokens, untied head."""
    import numpy as np

    model = load_tiny({"arch": "qwen3moe"})
    work = Work(model)
    norms = 64 + 2 * (64 + 64 + 24 + 24)
    attention = 2 * 64 * 24 * (4 + 2 + 2 + 4)
    router = 2 * 8 * 64
    expert = 2 * 3 * 64 * 64  # one of each layer
    head = 96 * 64
    ids = np.array([[[0, 1], [1, 2]], [[3, 4], [3, 4]]])  # 3 experts, then 2: on average 2.5
    assert work.bytes_read(ids, depth=0) == 4 * (norms + attention + router + 2.5 * expert + head)
    kv_per_token = 2 * 2 * 2 * 24 * 4
    assert work.bytes_read(ids, depth=10) - work.bytes_read(ids, depth=0) == 10 * kv_per_token
    assert work.operations(3, 3) == 2 * (3 * (norms + attention + router + 2 * expert) + 3 * head)
    # Of rows that nobody asks about the last layer makes keys and values only, and its experts are not read for them.
    last = 2 * 64 + 2 * 24 + 64 * 24 * (4 + 4) + 8 * 64 + 2 * 3 * 64 * 64
    assert work.operations(3, 1) == 2 * (3 * (norms + attention + router + 2 * expert) - 2 * last + head)
    ids = np.array([[[0, 1], [1, 2]], [[3, 4], [5, 6]]])
    fewer = work.bytes_read(ids, depth=0) - work.bytes_read(ids, depth=0, logit_rows=1)
    assert fewer == 4 * (3.5 - 2.5) * expert


def test_every_kind_of_case(load_tiny: Loader) -> None:
    cases = [Case("prefill", 8), Case("decode", 4), Case("decode", 4, 9), Case("verify-chain", 3, 5)]
    cases += [Case("verify-tree", 3, 5)]
    results = list(Bench(load_tiny({"arch": "qwen3moe"})).run(cases, rounds=2))
    assert [(r.test, r.n, r.depth) for r in results] == [(c.test, c.n, c.depth) for c in cases]
    for r in results:
        assert r.seconds > 0 and r.spread[0] <= r.seconds <= r.spread[1] and r.of_read > 0
        assert json.loads(json.dumps(r.to_json()))["schema"] == "expertree.bench/1"
        assert r.cache_types == ("f32", "f32")


def test_a_rounded_cache_is_read_in_its_size(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """And asked of the peer, which keeps F16 by itself."""
    model = expertree.Model(tiny(arch="qwen3moe"), cache_type=("f16", "q8_0"))
    per_token = Work(model).bytes_read(None, depth=1) - Work(model).bytes_read(None, depth=0)
    assert per_token == 2 * 2 * (24 * 2 + 34)  # layers, heads, a key and a block for a value
    seen = tmp_path / "arguments"
    peer = tmp_path / "llama-bench"
    _write_peer(peer, f"open({str(seen)!r}, 'w').write(' '.join(sys.argv))")
    (result,) = Bench(model, peer).run([Case("decode", 4)], rounds=1)
    assert result.cache_types == ("f16", "q8_0")
    assert "-ctk f16 -ctv q8_0 -fa 1" in seen.read_text()


def test_a_peer_runs_in_the_same_rounds(load_tiny: Loader, tmp_path: Path) -> None:
    """And the better of its two settings counts, here 200 of 100 and 200 tokens/s."""
    peer = _write_peer(tmp_path / "llama-bench", "factor = 2 if '--repack 1' in ' '.join(sys.argv) else 1")
    (result,) = Bench(load_tiny({"arch": "llama"}), peer).run([Case("decode", 4)], rounds=3)
    assert result.peer_setting == "repack 1"
    assert result.peer_tokens_per_second == pytest.approx(200.0)
    assert result.peer_ratio == pytest.approx(0.005 / result.seconds)  # the median of an odd number of rounds
    peer.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(expertree.DeviceError, match="llama-bench"):
        list(Bench(load_tiny({"arch": "llama"}), peer).run([Case("decode", 4)], rounds=1))
    peer.write_text(f"#!{sys.executable}\nprint('[{{}}]')\n")
    with pytest.raises(expertree.DeviceError, match="llama-bench"):
        list(Bench(load_tiny({"arch": "llama"}), peer).run([Case("decode", 4)], rounds=1))


def test_the_two_in_turn(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """Only one of them is in memory; the peer runs once for each depth and setting of a round."""
    seen = tmp_path / "runs"
    peer = _write_peer(tmp_path / "llama-bench", f"open({str(seen)!r}, 'a').write(' '.join(sys.argv) + '\\n')")
    loaded: list[weakref.ref[expertree.Model]] = []

    def load() -> expertree.Model:
        assert all(model() is None for model in loaded)
        model = expertree.Model(tiny(arch="qwen3moe"))
        loaded.append(weakref.ref(model))
        return model

    cases = [Case("prefill", 8), Case("decode", 4), Case("verify-chain", 2, 5), Case("verify-tree", 2, 5)]
    results = run_in_turn(load, peer, cases, rounds=2)
    assert [(r.test, r.n, r.depth) for r in results] == [(c.test, c.n, c.depth) for c in cases]
    assert all(r.peer_ratio is not None and r.bytes_read > 0 and r.operations > 0 for r in results)
    runs = [line for line in seen.read_text().splitlines() if " -d " in line]
    assert len(loaded) == 2
    assert len(runs) == 2 * 2 * 2
    assert sum("-p 8 -n 4 -d 0" in line for line in runs) == 4
    assert sum("-p 2 -n 0 -d 5" in line for line in runs) == 4


def _write_peer(path: Path, line: str) -> Path:
    """A program that answers as llama-bench does, 100 tokens/s for each test, after running `line`."""
    path.write_text(f"""#!{sys.executable}
import json, sys
factor = 1
{line}
if "--help" in sys.argv:
    print("--repack <0|1>")
else:
    value = lambda name: [int(n) for n in sys.argv[sys.argv.index(name) + 1].split(",") if n != "0"]
    tests = [(n, 0) for n in value("-p")] + [(0, n) for n in value("-n")]
    print(json.dumps([{{"n_prompt": p, "n_gen": n, "avg_ts": 100.0 * factor}} for p, n in tests]))
""")
    path.chmod(0o755)
    return path
