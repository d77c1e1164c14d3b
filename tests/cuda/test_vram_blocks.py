"""Layers on a device from their attention on: what comes back, in how many round trips, and what remains the CPU's.
That no bit depends on it is in test_vram_attention.py for every architecture."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_session import same_bits
from emulated_device import STREAMS, emulated, leaks, library, n_calls
from expertree import Model, ModelFormatError, ScriptedDrafter
from expertree._core import _testing
from recorded_model import ARCHITECTURES as RECORDED
from test_vram import ALL, TOKENS, FetchRule, OnDevice, expected
from test_vram_attention import cpu_session, device_session, kv, random_life
from tiny_model import ARCHITECTURES

Tiny = Callable[..., Path]


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


def calls(path: Path, **options: Any) -> int:
    """Products that the device was asked for in a pass of one chunk: one for a block, three for a feed-forward part."""
    model = OnDevice(path, **options)
    before = model.stats["products"]
    model.evaluate(TOKENS[:6])
    return int(model.stats["products"] - before)


def test_a_layer_is_one_call(tiny: Tiny) -> None:
    """And the head one. Shared experts run beside the others, in a call of their own."""
    for arch, n in (("llama", 2 + 1), ("gemma3", 2 + 1), ("qwen3moe", 2 + 1), ("qwen2moe", 2 * (1 + 3) + 1)):
        path = tiny(arch=arch, format="Q8_0")
        layers = Model(path).n_layers
        assert calls(path) == n + (layers - 2) * (n - 1) // 2, arch
    # A feed-forward part without kernels stays the CPU's.
    assert calls(tiny(arch="llama", format="Q4_K", formats={"ffn_down.weight": "IQ2_XS"})) == 2 + 1


def test_a_trip_of_a_wide_layer_has_room(tiny: Tiny) -> None:
    """512 rows of 8,290 floats are more than the 16 MiB that outputs are kept to otherwise."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_layers=1, n_embd=4096, n_ff=32, n_experts=2)
    tokens = np.random.default_rng(3).integers(0, 96, 512).astype(np.int32)
    assert same_bits(OnDevice(path).evaluate(tokens), expected(path, tokens))


def waits(path: Path, **options: Any) -> int:
    """Round trips of a step of one row."""
    session = Model(path, vram="all").session(temperature=0.0, **options)
    session.prefill([5, 9, 5])
    session.step()
    before = n_calls("cudaEventSynchronize")
    session.step()
    return n_calls("cudaEventSynchronize") - before


def test_layers_without_experts_share_a_round_trip(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the head with them. A layer that the CPU has a part of ends it, and a drafter that wants to see inside."""
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    deep = tiny(arch="llama", format="Q8_0", n_layers=5)
    assert waits(deep) == 1
    assert waits(tiny(arch="llama", format="Q8_0", n_layers=5, formats={"blk.1.ffn_down.weight": "IQ2_XS"})) == 2
    # The layers before, and this one's attention; its feed-forward part is the CPU's; the layers behind it.
    assert waits(deep, top_k=0) == 1
    for streams in STREAMS:
        with emulated(streams=streams, seed=3):
            random_life(device_session(OnDevice(deep)), cpu_session(deep), 13, 8)


def test_what_drafters_see_inside(tiny: Tiny) -> None:
    """What enters any layer and what leaves the last one, also where the layers and the head go together."""
    path = tiny(arch="llama", format="Q8_0", n_layers=5)
    tokens, parents = [int(t) for t in TOKENS[:6]], [-1, 0, 0, 1, 1, 3]
    for taps, last in (([0, 1, 2, 3, 4], True), ([2], False), ([], True), ([], False), ([4, 1], True)):
        for n_best in (0, 3):
            here, there = (
                _testing.hidden_states(OnDevice(path, vram).model, tokens, parents, taps, last, n_best)
                for vram in (0, ALL)
            )
            assert same_bits(there[0], here[0]) and same_bits(there[1], here[1])
            assert there[2].shape == (6, n_best or here[2].shape[1])
            assert same_bits(there[2], -np.sort(-here[2], axis=1)[:, :n_best] if n_best else here[2])


@pytest.mark.parametrize("streams", STREAMS)
def test_parts_of_a_layer_that_stay(streams: str, tiny: Tiny) -> None:
    """A feed-forward part, or experts, that the device cannot run, and a router in a format without kernels."""
    for arch, formats in (
        ("llama", {"blk.0.ffn_down.weight": "IQ2_XS"}),
        ("qwen2moe", {"ffn_down_shexp.weight": "IQ2_XS"}),
        ("qwen3moe", {"_exps.weight": "IQ2_XS"}),
        ("qwen3moe", {"blk.1.attn_k.weight": "IQ2_XS"}),
    ):
        path = tiny(arch=arch, format="Q4_K", formats=formats)
        with emulated(streams=streams, seed=len(arch)):
            assert same_bits(OnDevice(path).logits(TOKENS[:12], 5), expected(path, TOKENS[:12])), (arch, formats)


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *RECORDED])
def test_every_architecture_with_experts_by_chance(arch: str, tiny: Tiny) -> None:
    """Choices that the device makes, and experts that run there or not."""
    path = tiny(arch=arch, format="Q8_0")
    with emulated(streams="shuffle", seed=len(arch)):
        model = OnDevice(path, fetch=FetchRule.shuffled)
        random_life(device_session(model), cpu_session(path), 31, 8)
        del model
        assert leaks() == ""


def test_layers_with_experts_and_without(tiny: Tiny) -> None:
    """Of one model: Gemma 4, whose layers have a scale of their own, and a dense part with experts and without."""
    of_experts = [f"{name}.{kind}" for name in ("ffn_gate_inp", "ffn_down_exps") for kind in ("weight", "scale")]
    for name in ("ffn_gate_up_exps", "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        of_experts.append(f"{name}.weight")
    names = {f"blk.{i}.{name}": None for i in (0, 2, 5) for name in of_experts}
    path = tiny(arch="gemma4-moe", format="Q8_0", names=names)
    assert calls(path) == 3 * 1 + 3 * (1 + 3) + 1
    for streams in STREAMS:
        with emulated(streams=streams, seed=7):
            random_life(device_session(OnDevice(path)), cpu_session(path), 9, 8)


def test_every_budget_of_blocks(tiny: Tiny) -> None:
    """As the budget grows one layer after the other goes there."""
    for arch in ("llama", "qwen2moe", "gemma3"):
        path = tiny(arch=arch, format="Q8_0")
        logits = expected(path)
        stats = OnDevice(path).stats
        seen = set()
        most = stats["all_bytes"]
        for vram in (*np.linspace(stats["least_bytes"], most - 1, 16).astype(int), most):
            with emulated(streams="lazy", seed=int(vram)):
                model = OnDevice(path, int(vram))
                assert same_bits(model.logits(TOKENS, 7), logits), (arch, vram)
                seen.add(kv(model.stats).get("GPU", (0, 0, ""))[0])
        n = Model(path).n_layers
        assert seen >= ({0, n} if arch == "qwen2moe" else {0, n - 1, n}), (arch, seen)


def test_what_is_not_a_number_is_reported_as_on_the_cpu(tiny: Tiny) -> None:
    router = np.zeros((8, 64), np.float32)
    router[3] = np.inf
    for arch, tensors in (
        ("qwen3moe", {"blk.1.ffn_gate_inp.weight": router}),
        ("qwen3moe", {"blk.0.ffn_norm.weight": np.full(64, np.nan, np.float32)}),
        ("llama", {"blk.1.ffn_norm.weight": np.full(64, np.nan, np.float32)}),
        ("llama", {"blk.0.ffn_norm.weight": np.full(64, np.nan, np.float32)}),
    ):
        path = tiny(arch=arch, format="Q8_0", tensors=tensors)
        texts = []
        for model in (OnDevice(path), OnDevice(path, 0)):
            with pytest.raises(ModelFormatError) as error:
                model.logits(TOKENS[:6], 3)
            texts.append(str(error.value))
            with pytest.raises(ModelFormatError) as error:  # with the best logits asked for
                model.session.prefill(TOKENS[:1])
            texts.append(str(error.value))
        assert texts[:2] == texts[2:]


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen2moe", "olmoe"])
def test_a_budget_of_experts(arch: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that may use only some experts choose again among them, from the device's scores."""
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    path = tiny(arch=arch, format="Q8_0")
    tokens = []
    for options in ({"vram": "all"}, {"ram": "all"}):
        session = Model(path, n_ctx=256, **options).session(n_ctx=256)  # type: ignore[arg-type]
        session.prefill([5, 9, 5, 9, 33, 60, 5, 9])
        while len(session) < 40:
            session.step()
        truth = session.tokens
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            limited = Model(path, n_ctx=256, **options).session(  # type: ignore[arg-type]
                n_ctx=256, draft=ScriptedDrafter(truth, rates=[0.7], spread=0.3), select="moespec:2"
            )
        limited.prefill([5, 9, 5, 9, 33, 60, 5, 9])
        while len(limited) < 40:
            limited.step()
        tokens.append((truth, limited.tokens))
    assert tokens[0] == tokens[1]
