"""Attention as a whole on a device, keys and values with it: whatever sequences do with their cells, and whichever of
them have cells there, no bit depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_session import CoreSession, same_bits
from emulated_device import STREAMS, emulated, leaks, library, n_calls, set_up
from expertree import DeviceError, Engine, Model, UnsupportedError, _core
from expertree._core import _testing
from recorded_model import ARCHITECTURES as RECORDED
from test_vram import TOKENS, FetchRule, OnDevice, expected
from tiny_model import ARCHITECTURES

Tiny = Callable[..., Path]
# Of which the device runs no attention: latent, or none at all in some layer.
LATENT = tuple(arch for arch in RECORDED if arch.startswith("deepseek2"))
WITH_ATTENTION = [arch for arch in (*ARCHITECTURES, *RECORDED) if arch not in LATENT]


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


def kv(stats: dict[str, Any]) -> dict[str, tuple[int, int, str]]:
    return {p["place"]: (p["n"], p["of"], p["note"]) for p in stats["parts"] if p["part"] == "KV cache"}


def random_tree(rng: np.random.Generator, n: int) -> tuple[list[int], list[int]]:
    """Several roots, long arms, nodes with many children."""
    parents = [int(rng.integers(max(-1, i - 4), i)) if i else -1 for i in range(n)]
    return rng.integers(0, 96, n).tolist(), parents


def path_of(parents: list[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


def random_life(device: Any, cpu: Any, seed: int, n_steps: int = 14) -> None:
    """Two core sessions: trees, commits of any path, roll-backs, truncation, branches; logits of every row compared."""
    rng = np.random.default_rng(seed)
    for _ in range(n_steps):
        tokens, parents = random_tree(rng, int(rng.integers(1, 14)))
        ids, tree = np.asarray(tokens, np.int32), np.asarray(parents, np.int32)
        if device.n_tokens + len(tokens) > 120:
            break
        assert same_bits(device.evaluate(ids, tree)[0], cpu.evaluate(ids, tree)[0])
        if rng.random() < 0.2:
            device.rollback()
            cpu.rollback()
            continue
        path = np.asarray(path_of(parents, int(rng.integers(len(parents)))), np.int32)
        device.commit(path)
        cpu.commit(path)
        if rng.random() < 0.3:
            length = int(rng.integers(0, device.n_tokens + 1))
            device.truncate(length)
            cpu.truncate(length)
        if rng.random() < 0.2:
            device, cpu = device.branch(), cpu.branch()


def cpu_session(path: Path, n_ctx: int = 128, **options: Any) -> Any:
    return CoreSession(_testing.load_paged(path.as_posix(), **options), n_ctx).session


def device_session(model: OnDevice, n_ctx: int = 128) -> Any:
    return _core.Session(model.model, n_ctx, _core.SamplerOptions())


@pytest.mark.parametrize("arch", WITH_ATTENTION)
def test_every_architecture(arch: str, tiny: Tiny) -> None:
    path = tiny(arch=arch, format="Q8_0")
    for seed, streams in enumerate(("lazy", "shuffle"), 1):
        with emulated(streams=streams, seed=seed):
            model = OnDevice(path)
            assert set(kv(model.stats)) == {"GPU"}, kv(model.stats)
            n_before = model.stats["products"]
            random_life(device_session(model), cpu_session(path), seed, 6)
            assert model.stats["products"] > n_before
            assert model.stats["kv_cells_free"] == model.stats["kv_cells"]
            del model
            assert leaks() == ""


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
@pytest.mark.parametrize("arch", WITH_ATTENTION)
def test_every_architecture_with_rounded_cells(arch: str, cache_type: str, tiny: Tiny) -> None:
    path = tiny(arch=arch, format="Q8_0")
    with emulated(streams="shuffle", seed=len(arch)):
        model = OnDevice(path, cache_type=cache_type)
        assert set(kv(model.stats)) == {"GPU"}, kv(model.stats)
        random_life(device_session(model), cpu_session(path, cache_type=cache_type), 8, 6)
        del model
        assert leaks() == ""


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_lives_with_rounded_cells(cache_type: str, streams: str, tiny: Tiny) -> None:
    """What the CPU has rounded comes to the device as it is, and the other way round."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    for seed in range(2):
        with emulated(streams=streams, seed=seed + 1):
            model = OnDevice(path, fetch=FetchRule.shuffled, cache_type=cache_type)
            random_life(device_session(model), cpu_session(path, cache_type=cache_type), seed + 20, 24)


def test_a_value_that_fits_no_half(tiny: Tiny) -> None:
    """Refused as on the CPU, and the sequence is as it was."""
    tokens = np.arange(5, dtype=np.int32)
    tree = np.arange(-1, 4, dtype=np.int32)
    values = np.full((32, 64), 1e6, np.float32)
    path = tiny(arch="llama", format="F32", tensors={"blk.1.attn_v.weight": values})
    for cache_type in ("f16", "f32"):
        session = device_session(OnDevice(path, cache_type=cache_type))
        cpu = cpu_session(path, cache_type=cache_type)
        if cache_type == "f32":
            assert same_bits(session.evaluate(tokens, tree)[0], cpu.evaluate(tokens, tree)[0])
            continue
        for one in (session, cpu, session):
            with pytest.raises(UnsupportedError, match="does not fit a KV cache of f16"):
                one.evaluate(tokens, tree)
        assert session.n_tokens == 0


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("seed", range(3))
def test_lives_of_sequences(seed: int, streams: str, tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0")
    with emulated(streams=streams, seed=seed + 1):
        model = OnDevice(path, fetch=FetchRule.shuffled)
        random_life(device_session(model), cpu_session(path), seed + 10, 24)


@pytest.mark.parametrize("chunk", [1, 7, 24])
def test_windows_sinks_and_gates(chunk: int, tiny: Tiny) -> None:
    """Longer than every window of theirs."""
    tokens = np.random.default_rng(6).integers(0, 96, 96).astype(np.int32)
    for arch in ("gpt-oss", "gemma3", "llama4", "qwen3next", "mimo2"):
        path = tiny(arch=arch, format="Q8_0")
        with emulated(streams="shuffle", seed=chunk):
            assert same_bits(OnDevice(path).logits(tokens, chunk), expected(path, tokens)), arch


def test_long_prompts_and_trees_in_several_chunks(tiny: Tiny) -> None:
    path = tiny(arch="llama", format="Q8_0", n_layers=1, keys={"llama.context_length": 2048})
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 96, 300).astype(np.int32)
    model = OnDevice(path, n_ctx=1024)
    session, cpu = device_session(model, 1024), cpu_session(path, 1024)
    for one in (session, cpu):
        one.prefill(tokens)
    # A chain that goes on, a second root, and children of both, all over two chunks.
    parents = [*range(-1, 499), -1, *(int(rng.integers(0, 500)) for _ in range(60))]
    ids, tree = rng.integers(0, 96, len(parents)).astype(np.int32), np.asarray(parents, np.int32)
    with emulated(streams="lazy", seed=3):
        assert same_bits(session.evaluate(ids, tree)[0], cpu.evaluate(ids, tree)[0])


def test_what_the_cpu_leaves_in_cells_comes_to_the_device(tiny: Tiny) -> None:
    """The last layer of rows that nobody asks about leaves keys and values on the CPU, in cells that the device had."""
    path = tiny(arch="llama", format="Q8_0", keys={"llama.context_length": 2048})
    rng = np.random.default_rng(5)
    model, cpu = OnDevice(path, n_ctx=1024), cpu_session(path, 1024)
    session = device_session(model, 1024)
    more = np.asarray([-1, 0, 1], np.int32)
    for _ in range(2):
        tokens = rng.integers(0, 96, 520).astype(np.int32)
        for one in (session, cpu):
            one.truncate(0)
            one.prefill(tokens)
        assert same_bits(session.evaluate(TOKENS[:3], more)[0], cpu.evaluate(TOKENS[:3], more)[0])
        for one in (session, cpu):
            one.commit(np.arange(3, dtype=np.int32))


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
def test_sessions_share_the_cells(cache_type: str, tiny: Tiny) -> None:
    """As many as find room have cells; the others attend on the CPU, and have them when room comes."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    model = OnDevice(path, n_ctx=512, cache_type=cache_type)
    assert model.stats["kv_cells"] == 1024
    first, second = device_session(model, 300), device_session(model, 100)
    third, reference = device_session(model, 64), cpu_session(path, cache_type=cache_type)
    logits = reference.evaluate(TOKENS, np.arange(-1, 23, dtype=np.int32))[0]
    reference.rollback()
    for session in (first, third, second):
        assert same_bits(session.evaluate(TOKENS, np.arange(-1, 23, dtype=np.int32))[0], logits)
        session.commit(np.arange(24, dtype=np.int32))
    assert model.stats["kv_cells_free"] == 1024 - 812
    del first
    assert model.stats["kv_cells_free"] == 1024
    reference.prefill(TOKENS)
    for session in (second, third):
        for _ in range(3):
            ids, tree = np.asarray([5, 6, 7], np.int32), np.asarray([-1, 0, 0], np.int32)
            assert same_bits(session.evaluate(ids, tree)[0], reference.evaluate(ids, tree)[0])
            session.commit(np.asarray([0, 2], np.int32))
            reference.commit(np.asarray([0, 2], np.int32))
        reference.truncate(24)
    assert model.stats["kv_cells_free"] == 1024 - 612


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
def test_sessions_side_by_side(cache_type: str, tiny: Tiny) -> None:
    """Cells that do not begin at the pool's first."""
    path = tiny(arch="qwen3moe", format="Q8_0", keys={"qwen3moe.context_length": 2048})
    model = OnDevice(path, n_ctx=1024, cache_type=cache_type)
    sessions = [device_session(model, 64) for _ in range(2)]
    alone = [cpu_session(path, 64, cache_type=cache_type) for _ in range(2)]
    tree = np.arange(-1, 5, dtype=np.int32)
    for step in range(4):
        for i, (one, other) in enumerate(zip(sessions, alone, strict=True)):
            tokens = TOKENS[6 * ((step + i) % 4) :][:6]
            assert same_bits(one.evaluate(tokens, tree)[0], other.evaluate(tokens, tree)[0]), (step, i)
            for session in (one, other):
                session.commit(np.arange(5 - i, dtype=np.int32))
    assert model.stats["kv_cells_free"] == model.stats["kv_cells"] - 2 * (64 + 512)


def test_joint_steps(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions in one pass, of which one has cells and one has none; each says what it says alone."""
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    path = tiny(arch="qwen2moe", format="Q8_0")
    plain = Model(path)
    with emulated(streams="shuffle", seed=4):
        model = Model(path, vram="all", n_ctx=512)
        for sizes in ((100, 200), (300, 400), (400, 512)):
            sessions = [model.session(n_ctx=n, temperature=0.8, seed=n, draft="ngram") for n in sizes]
            alone = [plain.session(n_ctx=n, temperature=0.8, seed=n) for n in sizes]
            for i, (ours, theirs) in enumerate(zip(sessions, alone, strict=True)):
                prompt = [5, 9, 5, 9, 33, 5, 9 + i] * (2 + i)
                ours.prefill(prompt)
                theirs.prefill(prompt)
            engine = Engine(model)
            for _ in range(6):
                engine.step(sessions)
            for ours, theirs in zip(sessions, alone, strict=True):
                while len(theirs.tokens) < len(ours.tokens):
                    theirs.step()
                assert theirs.tokens[: len(ours.tokens)] == ours.tokens


def test_what_the_device_does_not_attend_to(tiny: Tiny) -> None:
    path = tiny(arch="qwen3", format="Q8_0")
    latent = OnDevice(tiny(arch="deepseek2", format="Q8_0"))
    assert kv(latent.stats)["RAM"][2] == "latent attention runs on the CPU"
    whole = OnDevice(path).stats
    some = OnDevice(path, whole["all_bytes"] - 1)
    assert kv(some.stats) == {"GPU": (1, 2, ""), "RAM": (1, 2, "no room on the GPU")}
    assert same_bits(some.logits(TOKENS, 5), expected(path))


@pytest.mark.parametrize(
    "call",
    ["cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord", "cudaEventSynchronize", "cudaStreamBeginCapture",
     "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch", "run:kernel", "run:copy"],
)  # fmt: skip
@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_a_call_fails(arch: str, call: str, tiny: Tiny) -> None:
    """The sequence is as it was, with cells moved and without; a lost device takes nothing of it along."""
    path = tiny(arch=arch, format="Q8_0")
    ids, tree = np.asarray([1, 2, 3, 4], np.int32), np.asarray([-1, 0, 0, 2], np.int32)
    n_failed = 0
    for nth in (1, 2, 3, 5, 8, 13, 21, 34):
        with emulated(streams="lazy", seed=nth):
            model, cpu = OnDevice(path), cpu_session(path)
            session = device_session(model)
            for one in (session, cpu):
                one.prefill(TOKENS)
                one.evaluate(ids, tree)
                one.commit(np.asarray([0, 2, 3], np.int32))
            set_up(fail=f"{call}:{nth}")
            before = n_calls(call)
            try:
                got = session.evaluate(ids, tree)[0]
                assert call.startswith("run:") or n_calls(call) - before < nth  # a call that failed is an error
            except DeviceError:
                n_failed += 1
                assert model.stats["is_lost"] == call.startswith("run:")
                got = session.evaluate(ids, tree)[0]
            assert same_bits(got, cpu.evaluate(ids, tree)[0]), nth
            set_up(fail="")
            for one in (session, cpu):
                one.commit(np.asarray([0, 1], np.int32))
            assert same_bits(session.evaluate(ids, tree)[0], cpu.evaluate(ids, tree)[0]), nth
            library().expertree_emu_clear_faults()
            del session, model
            assert leaks() == ""
    # A pass of llama is two calls of the device.
    assert n_failed >= (1 if call == "cudaMemsetAsync" else 2 if "Graph" in call or "Capture" in call else 3)


def test_the_memory_that_is_said(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    path = tiny(arch="qwen3", format="Q8_0")
    small, large = (Model(path, vram="all", n_ctx=n) for n in (64, 512))
    cell = 2 * 2 * 2 * 24 * 4  # layers, KV heads, keys and values, elements, bytes
    assert large.gpu["kv_cells"] - small.gpu["kv_cells"] == 448
    assert [p["bytes"] for p in large.gpu["parts"] if p["part"] == "KV cache"] == [1024 * cell]
    assert large.memory()["vram_bytes"] - small.memory()["vram_bytes"] >= 448 * cell
