"""What every token needs, on a device: where it goes, in what order, and that no bit depends on it. That experts keep
theirs beside it is in test_vram.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_session import same_bits
from emulated_device import emulated, leaks, library
from expertree import DeviceError, Model, OutOfMemoryError, UnsupportedError
from expertree.inspect_model import describe
from expertree.placement import dense_parts, gpu_text
from recorded_model import ARCHITECTURES as RECORDED
from test_vram import TOKENS, FetchRule, OnDevice, expected
from tiny_model import ARCHITECTURES, FORMATS, MOE_ARCHITECTURES

Tiny = Callable[..., Path]
GROUPS = ["attention", "recurrent layers", "dense feed-forward", "shared experts", "head"]
ELSEWHERE = ("experts", "KV cache")


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


def dense(stats: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    return [(p["part"], p["place"], p["n"], p["of"]) for p in stats["parts"] if p["part"] not in ELSEWHERE]


def dense_budgets(path: Path) -> list[int]:
    """That hold some of the parts, half of what they take, all of them, and beside these an expert of each size."""
    stats = OnDevice(path).stats
    least = stats["least_bytes"]
    if "slots" not in stats:
        return [least, (least + stats["dense_bytes"]) // 2, stats["all_bytes"]]
    # The first part comes with all buffers: it takes most.
    return [least + stats["dense_bytes"] * share // 16 for share in (12, 14, 16)]


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *RECORDED])
def test_every_architecture(arch: str, tiny: Tiny) -> None:
    path = tiny(arch=arch, format="Q8_0")
    logits = expected(path)
    for i, vram in enumerate(dense_budgets(path)):
        with emulated(streams=("lazy", "shuffle", "eager")[i], seed=i + 1):
            model = OnDevice(path, vram, fetch=FetchRule.shuffled)
            assert same_bits(model.logits(TOKENS, (5, 1, len(TOKENS))[i]), logits), vram
            stats = model.stats
            assert stats["budget_bytes"] <= vram
            if i == 2:
                assert all(place == "GPU" and n == of for _, place, n, of in dense(stats)), stats["parts"]
                assert stats["products"] > 0
            del model
            assert leaks() == ""


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(form: str, tiny: Tiny) -> None:
    """A dense model: formats that the device does not run stay on the CPU, and a model of nothing else is told so."""
    path = tiny(arch="qwen3", format=form)
    try:
        model = OnDevice(path)
    except UnsupportedError as error:
        assert "none of the formats" in str(error)
        assert OnDevice(path, vram_auto=True).model.gpu is None
        return
    with emulated(streams="shuffle", seed=5):
        assert same_bits(model.logits(TOKENS[:12], 4), expected(path, TOKENS[:12]))
    assert all(place == "GPU" for _, place, _, _ in dense(model.stats))


@pytest.mark.parametrize(
    "formats",
    [
        {"blk.0.attn_k.weight": "Q5_0", "blk.1.attn_v.weight": "F16"},
        {"ffn_up.weight": "Q6_K", "output.weight": "F16"},
        {"ffn_up.weight": "Q4_0", "ffn_down.weight": "BF16"},
        {"blk.1.ffn_down.weight": "Q8_0", "attn_output.weight": "F32"},
    ],
)
def test_parts_of_several_formats(formats: dict[str, str], tiny: Tiny) -> None:
    path = tiny(arch="qwen2", format="Q4_K", n_layers=2, formats=formats)
    model = OnDevice(path)
    assert same_bits(model.logits(TOKENS[:12], 4), expected(path, TOKENS[:12]))
    assert all(place == "GPU" for _, place, _, _ in dense(model.stats))


def test_parts_without_kernels_stay(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q4_K", n_layers=3, formats={"blk.1.attn_k.weight": "IQ2_XS"})
    model = OnDevice(path)
    assert dense(model.stats) == [("attention", "GPU", 2, 3), ("attention", "RAM", 1, 3), ("head", "GPU", 1, 1)]
    notes = [part["note"] for part in model.stats["parts"] if part["part"] == "attention"]
    assert notes == ["", "no kernels for IQ2_XS"]
    assert same_bits(model.logits(TOKENS[:12], 5), expected(path, TOKENS[:12]))


def test_experts_without_kernels_leave_the_device_to_the_rest(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q4_K", formats={"_exps.weight": "IQ2_XS"})
    model = OnDevice(path)
    assert "slots" not in model.stats
    assert [place for _, place, _, _ in dense(model.stats)] == ["GPU", "GPU"]
    assert same_bits(model.logits(TOKENS[:12], 5), expected(path, TOKENS[:12]))


def test_they_go_there_in_order_and_before_experts(tiny: Tiny) -> None:
    """As the budget grows: an expert, then attention layer by layer, then what is beside experts, then the head, and
    only then further experts."""
    path = tiny(arch="qwen2moe", format="Q8_0", n_layers=3)
    everything = OnDevice(path).stats
    least, most = everything["least_bytes"], everything["all_bytes"]
    seen = []
    for vram in np.linspace(least, most, 100).astype(int):
        stats = OnDevice(path, int(vram)).stats
        there = [(part, n) for part, place, n, _ in dense(stats) if place == "GPU"]
        assert [part for part, _ in there] == [group for group in GROUPS if group in dict(there)]
        seen.append((sum(n for _, n in there), stats["slots"]))
    assert seen[0] == (0, 1)
    assert seen[-1] == (3 + 3 + 1, everything["slots"])
    counts = [n for n, _ in seen]
    assert counts == sorted(counts)
    assert len(set(counts)) > 4
    n_slots = everything["slots"]
    slot = (most - everything["dense_bytes"] - everything["fixed_bytes"]) // n_slots
    nearly = OnDevice(path, most - 3 * slot).stats
    assert nearly["slots"] == n_slots - 3
    assert all(place == "GPU" for _, place, _, _ in dense(nearly))
    notes = {part["note"] for part in OnDevice(path, least).stats["parts"] if part["part"] not in ELSEWHERE}
    assert notes == {"no room on the GPU"}


def test_budgets_of_a_dense_model(tiny: Tiny) -> None:
    path = tiny(arch="llama", format="Q8_0")
    stats = OnDevice(path).stats
    least = stats["least_bytes"]
    assert stats["all_bytes"] == stats["budget_bytes"] == stats["dense_bytes"]
    with pytest.raises(OutOfMemoryError, match=f"works with {least} bytes .*raise --vram"):
        OnDevice(path, least - 1)
    assert OnDevice(path, least).stats["budget_bytes"] == least
    with emulated(device_mem=stats["all_bytes"] - 1):
        with pytest.raises(OutOfMemoryError, match=f"are free there; use --vram auto, or a size from {least}"):
            OnDevice(path)
        smaller = OnDevice(path, vram_auto=True)
        assert 0 < smaller.stats["dense_bytes"] < stats["dense_bytes"]
        assert same_bits(smaller.logits(TOKENS, 5), expected(path))
    with emulated(device_mem=least - 1):
        model = OnDevice(path, vram_auto=True)
        assert model.model.gpu is None
        assert f"works with {least} bytes" in model.model.vram_note


def test_heads_larger_than_the_buffers(tiny: Tiny) -> None:
    """More outputs than a call has room for come in several calls."""
    path = tiny(arch="qwen3", format="Q8_0", n_vocab=20000)
    tokens = np.random.default_rng(4).integers(0, 20000, 300).astype(np.int32)
    model = OnDevice(path)
    assert same_bits(model.evaluate(tokens), expected(path, tokens))
    assert model.stats["products"] >= 2


@pytest.mark.parametrize("arch", ["qwen2moe", "deepseek2", "llama4"])
def test_trees_beside_experts(arch: str, tiny: Tiny) -> None:
    path = tiny(arch=arch, format="Q8_0")
    resident = Model(path, ram="all").session(n_ctx=512)
    with emulated(streams="shuffle", seed=3):
        model = OnDevice(path, fetch=FetchRule.shuffled)
        rng = np.random.default_rng(1)
        for _ in range(8):
            n = int(rng.integers(1, 12))
            tokens, parents = rng.integers(0, 96, n), np.array([rng.integers(-1, i) if i else -1 for i in range(n)])
            assert same_bits(model.evaluate(tokens, parents), resident.evaluate(tokens.tolist(), parents.tolist()))
            model.session.commit(np.zeros(1, np.int32))
            resident.commit([0])


def test_a_device_that_is_lost_is_lost_to_all(tiny: Tiny) -> None:
    """Whoever finds out, experts or dense products: one error, then the CPU runs all."""
    path = tiny(arch="qwen2moe", format="Q8_0")
    logits = expected(path, TOKENS[:8])
    for nth in range(1, 40, 3):
        with emulated(streams="lazy", seed=nth):
            model = OnDevice(path, fetch=FetchRule.always)
            model.logits(TOKENS[:4], 2)
            library().expertree_emu_set(b"fail", f"run:kernel:{nth}".encode())
            with pytest.raises(DeviceError, match="the GPU failed"):
                model.evaluate(TOKENS[4:8])
            assert model.stats["is_lost"]
            assert (model.model.experts.states != 3).all()
            n_products = model.stats["products"]
            assert same_bits(model.evaluate(TOKENS[4:8]), logits[4:])
            assert (model.stats["errors"], model.stats["products"]) == (1, n_products)
            library().expertree_emu_clear_faults()
            del model
            assert leaks() == ""


def test_what_inspect_says_is_what_loading_does(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    for arch in (*MOE_ARCHITECTURES, "llama", "deepseek2", "llama4", "gemma3"):
        path = tiny(arch=arch, format="Q8_0")
        parts = {p["part"]: p["bytes"] for p in OnDevice(path).stats["parts"] if p["place"] == "GPU"}
        shown = {p.what: p.size_bytes for p in describe(path).placement if p.place == "GPU"}
        for name in GROUPS:
            assert (name in shown) == (name in parts), (arch, name)
            # Rows that are no multiple of 128 elements are filled up.
            assert shown.get(name, 0) <= parts.get(name, 0) <= 2.5 * shown.get(name, 0), (arch, name)
        for kind in ("f32", "f16", "q8_0"):
            placement = describe(path, cache_types=(kind, kind)).placement
            shown = {p.what: p.size_bytes for p in placement if p.place == "GPU"}
            stats = OnDevice(path, n_ctx=4096, cache_type=kind).stats
            cells = [part["bytes"] for part in stats["parts"] if part["part"] == "KV cache" and part["place"] == "GPU"]
            assert ("KV cache" in shown) == bool(cells), (arch, kind)
            if cells and kind != "q8_0":  # of heads that are no multiple of 32 elements blocks are filled up
                assert [shown["KV cache"]] == cells, (arch, kind)
    assert dense_parts([], None) == []


def test_the_line_about_it(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    path = tiny(arch="qwen2moe", format="Q8_0")
    model = Model(path, vram="all")
    text = gpu_text(model.gpu)
    assert "attention (" in text and "shared experts (" in text and "head (" in text
    assert "room for 16 of 16 experts" in text and "on the CPU" not in text
    assert model.memory()["vram_bytes"] == model.gpu["budget_bytes"]
    some = Model(path, vram=model.gpu["least_bytes"])
    assert "room for 1 of 16 experts; on the CPU: attention (no room on the GPU), shared" in gpu_text(some.gpu)
    path = tiny(arch="qwen3moe", format="Q4_K", n_layers=3, formats={"blk.1.attn_k.weight": "IQ2_XS"})
    text = gpu_text(Model(path, vram="all").gpu)
    assert ": attention (2 of 3 layers), head (" in text
    assert "; on the CPU: attention (1 of 3 layers: no kernels for IQ2_XS)" in text


def test_of_the_reference_mode_there_is_none(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    with pytest.raises(Exception, match="int8 activations"):
        Model(tiny(arch="llama"), vram="all", activations="f32")
