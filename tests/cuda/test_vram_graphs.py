"""Calls of a device that come again are graphs: no bit depends on it, whatever grows, shrinks or takes turns between
two launches of one graph, and a step makes few calls of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_session import same_bits
from emulated_device import STREAMS, emulated, leaks, library, n_calls
from expertree import Model
from recorded_model import ARCHITECTURES as RECORDED
from test_vram import TOKENS, FetchRule, OnDevice, budgets
from test_vram_attention import cpu_session, device_session, random_tree
from tiny_model import ARCHITECTURES

Tiny = Callable[..., Path]


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


def launched() -> int:
    return n_calls("cudaGraphLaunch")


def evaluate(sessions: tuple[Any, Any], tokens: Any, parents: Any) -> None:
    """On the device and on the CPU."""
    there, here = (one.evaluate(np.asarray(tokens, np.int32), np.asarray(parents, np.int32))[0] for one in sessions)
    assert same_bits(there, here)


def chain(n: int) -> list[int]:
    return list(range(-1, n - 1))


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *RECORDED])
def test_every_architecture(arch: str, tiny: Tiny) -> None:
    """Each shape of a step as it comes for the first time, when it is captured, and twice as a graph."""
    path = tiny(arch=arch, format="Q8_0")
    with emulated(streams="shuffle", seed=len(arch)):
        model = OnDevice(path, fetch=FetchRule.shuffled)
        sessions = device_session(model), cpu_session(path)
        for one in sessions:
            one.prefill(TOKENS[:5])
        before = launched()
        for i in range(4):
            evaluate(sessions, TOKENS[i : i + 5], [-1, 0, 0, 1, -1])
            for one in sessions:
                one.commit(np.asarray([0, 1, 3][: i % 3 + 1], np.int32))
        assert launched() - before >= 2 * 3  # at least the first layer and the head
        del model, sessions
        assert leaks() == ""


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_contexts_that_grow(arch: str, cache_type: str, tiny: Tiny) -> None:
    """Past what a graph's grid was made for, and back again; one of them has a window."""
    path = tiny(arch=arch, format="Q8_0", keys={f"{arch}.context_length": 2048})
    rng = np.random.default_rng(3)
    with emulated(streams="lazy", seed=1):
        sessions = (
            device_session(OnDevice(path, n_ctx=1024, cache_type=cache_type), 1024),
            cpu_session(path, 1024, cache_type=cache_type),
        )
        for length in (250, 507, 252):
            kept = min(sessions[0].n_tokens, length - 3)
            tokens = rng.integers(0, 96, length - kept).astype(np.int32)
            for one in sessions:
                one.truncate(kept)
                one.prefill(tokens)
            before = launched()
            for _ in range(10):
                evaluate(sessions, rng.integers(0, 96, 1), [-1])
                for one in sessions:
                    one.commit(np.zeros(1, np.int32))
            assert launched() - before >= 10


@pytest.mark.parametrize("streams", STREAMS)
def test_widths(streams: str, tiny: Tiny) -> None:
    """Of which several share a graph: what lies in rows that are not there is no row's business."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_layers=1)
    rng = np.random.default_rng(4)
    with emulated(streams=streams, seed=5):
        sessions = device_session(OnDevice(path)), cpu_session(path)
        for one in sessions:
            one.prefill(TOKENS[:7])
        before = launched()
        for n in (6, 6, 5, 6, 5, 12, 12, 9, 10, 1, 1, 17, 24, 19, 32, 32, 25, 33, 33, 2, 5):
            tokens, parents = random_tree(rng, n)
            evaluate(sessions, tokens, parents)
            for one in sessions:
                if n % 5 == 0:
                    one.commit(np.zeros(1, np.int32))
                else:
                    one.rollback()
        assert launched() - before >= 2 * 10


@pytest.mark.parametrize(("arch", "fetch"), [("qwen3moe", "always"), ("qwen3moe", "shuffled"), ("gpt-oss", "always")])
@pytest.mark.parametrize("streams", STREAMS)
def test_experts(streams: str, arch: str, fetch: str, tiny: Tiny) -> None:
    """All of a layer's on the device, or some of them with the rest behind them or on the CPU; rows that one has vary.
    Those of gpt-oss have biases, which are each layer's own."""
    path = tiny(arch=arch, format="Q8_0", **({"n_layers": 3} if arch == "qwen3moe" else {}))
    rng = np.random.default_rng(7)
    with emulated(streams=streams, seed=3):
        vram = budgets(path)[-1 if fetch == "always" else 2]
        # Layer by layer: as they do until it is known what running an expert takes.
        model = OnDevice(path, vram, fetch=getattr(FetchRule, fetch), measured_runs=1 << 40)
        sessions = device_session(model), cpu_session(path)
        for one in sessions:
            one.prefill(TOKENS[:20])
        before = launched()
        for n in (8, 1, 5, 6, 8, 1) * 5:
            evaluate(sessions, rng.integers(0, 96, n), chain(n))
            for one in sessions:
                one.rollback()
        # Of some seven a step; with some of the experts alone there, of three.
        assert launched() - before >= (100 if fetch == "always" else 30)


def test_trees_that_become_deep(tiny: Tiny) -> None:
    """Lists of ancestors longer than those that a graph copies."""
    path = tiny(arch="llama", format="Q8_0")
    sessions = device_session(OnDevice(path)), cpu_session(path)
    for one in sessions:
        one.prefill(TOKENS[:7])
    tokens = np.random.default_rng(2).integers(0, 96, 24)
    star, beside = [-1] * 24, [-1, -1, *range(1, 23)]
    before = launched()
    for parents in (star, star, star, beside, star, beside, beside):
        evaluate(sessions, tokens, parents)
        for one in sessions:
            one.rollback()
    assert launched() - before >= 2 * 4


def test_sessions_that_take_turns(tiny: Tiny) -> None:
    """One graph, cells of two sequences: those of the second do not begin at the pool's first."""
    path = tiny(arch="qwen3moe", format="Q8_0", keys={"qwen3moe.context_length": 2048})
    with emulated(streams="shuffle", seed=2):
        model = OnDevice(path, n_ctx=1024)
        pairs = [(device_session(model, 64), cpu_session(path, 64)) for _ in range(2)]
        for i, pair in enumerate(pairs):
            for one in pair:
                one.prefill(TOKENS[i : 9 + 3 * i])
        before = launched()
        for step in range(4):
            for i, pair in enumerate(pairs):
                evaluate(pair, TOKENS[step + i :][:3], [-1, 0, 0])
                for one in pair:
                    one.commit(np.asarray([0, 1 + i], np.int32))
        assert launched() - before >= 6 * 3


def test_what_is_not_a_number_stays_with_its_rows(tiny: Tiny) -> None:
    """Tokens whose embeddings are not finite leave rows behind that a narrower call of the same graph has room for."""
    embeddings = np.random.default_rng(1).standard_normal((96, 64)).astype(np.float32)
    embeddings[50] = np.nan
    path = tiny(arch="llama", format="F32", tensors={"token_embd.weight": embeddings})
    model, cpu = OnDevice(path), cpu_session(path)
    session = device_session(model)
    for one in (session, cpu):
        one.prefill(TOKENS[TOKENS != 50][:6])
    for _ in range(3):
        n_before = n_calls("cudaStreamSynchronize")
        with pytest.raises(Exception, match="finite"):
            session.evaluate(np.asarray([1, 2, 3, 4, 5, 50], np.int32), np.asarray(chain(6), np.int32))
        evaluate((session, cpu), [1, 2, 3, 4, 5], chain(5))
        assert n_calls("cudaStreamSynchronize") == n_before
        for one in (session, cpu):
            one.rollback()


def calls(path: Path, n_steps: int = 8, **options: Any) -> dict[str, int]:
    """Of the runtime, that a step of one row makes when its graphs are there."""
    model = Model(path, vram="all")
    session = model.session(temperature=0.0, **options)
    session.prefill([5, 9, 5])
    model.load_experts()
    for _ in range(n_steps):
        session.step()
    names = ("*", "cudaGraphLaunch", "cudaLaunchKernel", "cudaEventSynchronize", "graph:kernel", "graph:copy")
    before = {name: n_calls(name) for name in names}
    session.step()
    return {name: n_calls(name) - before[name] for name in names}


def test_calls_of_a_step(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    for n_layers in (2, 5):
        dense = calls(tiny(arch="llama", format="Q8_0", n_layers=n_layers))
        # The launch, the event behind it, and the wait.
        assert (dense["*"], dense["cudaGraphLaunch"], dense["cudaEventSynchronize"]) == (3, 1, 1)
        assert dense["cudaLaunchKernel"] == 0
        assert dense["graph:kernel"] == 4 + 20 * n_layers
    few, more = (calls(tiny(arch="qwen3moe", format="Q8_0", n_layers=n)) for n in (2, 4))
    layer = {name: (more[name] - few[name]) / 2 for name in few}
    # Attention with the router, then the experts.
    assert (layer["cudaGraphLaunch"], layer["cudaEventSynchronize"], layer["graph:kernel"]) == (2, 2, 23)
    assert more["cudaLaunchKernel"] == 0
    assert layer["*"] <= 10
    # Once it is known what running an expert takes, as a dense model's.
    few, more = (calls(tiny(arch="qwen3moe", format="Q8_0", n_layers=n), n_steps=24) for n in (2, 4))
    assert (more["*"], more["cudaGraphLaunch"], more["cudaEventSynchronize"]) == (3, 1, 1)
    assert more["graph:kernel"] - few["graph:kernel"] == 2 * 26
