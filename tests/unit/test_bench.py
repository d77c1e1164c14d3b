"""The benchmark's bookkeeping. No figure of time is checked: speed never fails a test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import expertree
import pytest
from expertree.bench import Bench, Case, Work, default_cases

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
    assert work.operations(3, 1) == 2 * (3 * (norms + attention + router + 2 * expert) + head)


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
    peer.write_text(f'#!/bin/sh\necho "$@" > {seen}\necho \'[{{"avg_ts": 100.0}}]\'\n')
    peer.chmod(0o755)
    (result,) = Bench(model, peer).run([Case("decode", 4)], rounds=1)
    assert result.cache_types == ("f16", "q8_0")
    assert "-ctk f16 -ctv q8_0 -fa 1" in seen.read_text()


def test_a_peer_runs_in_the_same_rounds(load_tiny: Loader, tmp_path: Path) -> None:
    peer = tmp_path / "llama-bench"
    peer.write_text(f'#!{sys.executable}\nimport sys\nassert "-d" in sys.argv\nprint(\'[{{"avg_ts": 100.0}}]\')\n')
    peer.chmod(0o755)
    (result,) = Bench(load_tiny({"arch": "llama"}), peer).run([Case("decode", 4)], rounds=3)
    assert result.peer_tokens_per_second == pytest.approx(100.0)
    assert result.peer_ratio == pytest.approx(0.01 / result.seconds, rel=0.5)
    peer.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(expertree.DeviceError, match="llama-bench"):
        list(Bench(load_tiny({"arch": "llama"}), peer).run([Case("decode", 4)], rounds=1))
