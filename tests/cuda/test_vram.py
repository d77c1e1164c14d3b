"""A model on a device changes no bit: logits equal those of the CPU at every budget of RAM and of the device, whichever
parts lie there and experts are copied there, and whenever copies and runs really happen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_session import CoreSession, same_bits
from emulated_device import STREAMS, emulated, leaks, library
from expertree import DeviceError, InvalidRequestError, Model, OutOfMemoryError, UnsupportedError, _core
from expertree._core import _testing
from recorded_model import MOE_ARCHITECTURES as RECORDED
from tiny_model import FORMATS, MOE_ARCHITECTURES, TinyModel

TOKENS = np.random.default_rng(5).integers(0, 96, 24).astype(np.int32)
# Formats without kernels on a device: their layers stay on the CPU.
ALL = 1 << 40
Tiny = Callable[..., Path]
FetchRule = _testing.FetchRule


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


class OnDevice(CoreSession):
    """A core model on the emulated device, with poisoned slots in RAM."""

    def __init__(self, path: Path, vram: int = ALL, **options: Any) -> None:
        self._faults = _testing.Faults()
        self._faults.descriptor = True
        options = {"n_ctx": 512, **options}
        super().__init__(_testing.load_paged(path.as_posix(), faults=self._faults, vram=vram, **options), 512)

    @property
    def stats(self) -> dict[str, Any]:
        return dict(self.model.gpu)


def budgets(path: Path) -> list[int]:
    """The least that works, a slot more, half of the experts, nearly all of the model, all."""
    stats = OnDevice(path).stats
    least, most = stats["least_bytes"], stats["all_bytes"]
    slot = max(1, (most - stats["fixed_bytes"] - stats["dense_bytes"]) // max(1, stats["slots"]))
    half = least + stats["slots"] // 2 * slot
    return sorted({least, min(most, least + slot), half, max(least, most - slot), most})


def expected(path: Path, tokens: np.ndarray = TOKENS) -> np.ndarray:
    return Model(path, ram="all").logits(tokens)


def least_ram(path: Path) -> int:
    return int(OnDevice(path, 0).model.experts.stats["least_bytes"])


@pytest.mark.parametrize("arch", [*MOE_ARCHITECTURES, *RECORDED])
def test_every_architecture_at_several_budgets(arch: str, tiny: Tiny) -> None:
    path = tiny(arch=arch, format="Q8_0")
    logits = expected(path)
    every = budgets(path)
    ram = least_ram(path)
    cases = (
        (every[0], FetchRule.always, "shuffle", ram, 7),
        (every[1], FetchRule.shuffled, "lazy", ram, len(TOKENS)),
        (every[len(every) // 2], FetchRule.by_cost, "eager", 2 * ram, 5),
        (every[-1], FetchRule.never, "shuffle", ALL, 1),
    )
    for i, (vram, fetch, streams, ram_budget, chunk) in enumerate(cases):
        with emulated(streams=streams, seed=i + 1):
            model = OnDevice(path, vram, fetch=fetch, budget=ram_budget, read_ahead=chunk == 5)
            assert same_bits(model.logits(TOKENS, chunk), logits), (vram, fetch, streams, chunk)
            stats, pager = model.stats, model.model.experts.stats
            assert stats["budget_bytes"] <= vram
            assert stats["runs"] > 0 or fetch == FetchRule.by_cost
            assert (stats["products"] > 0) == (stats["dense_bytes"] > 0)
            assert stats["resident"] <= stats["slots"]
            assert pager["uses"] == pager["device_hits"] + pager["hits"] + pager["late"] + pager["misses"]
            assert pager["device_hits"] == stats["hits"]
            del model
            assert leaks() == ""


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("fetch", ["by_cost", "always", "never", "shuffled"])
def test_every_budget(fetch: str, streams: str, tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0")
    logits = expected(path)
    every = budgets(path)
    for vram in every:
        for ram in (least_ram(path), ALL):
            with emulated(streams=streams, seed=vram):
                model = OnDevice(path, vram, fetch=getattr(FetchRule, fetch), budget=ram)
                for chunk in (3, len(TOKENS)):
                    assert same_bits(model.logits(TOKENS, chunk), logits), (vram, ram, chunk)
                    model.session.truncate(0)
                stats = model.stats
                assert (stats["fetches"] > 0) == (fetch in ("always", "shuffled")) or fetch == "by_cost"
                if fetch == "always":
                    assert (stats["evictions"] > 0) == (vram < every[-2])
                assert (stats["dense_bytes"] > 0) == (vram >= every[-2])


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(form: str, tiny: Tiny) -> None:
    """Formats that the device does not run stay on the CPU; a model of nothing else is told so."""
    path = tiny(arch="qwen3moe", format=form)
    try:
        model = OnDevice(path, fetch=FetchRule.always)
    except UnsupportedError as error:
        assert "formats" in str(error)
        assert OnDevice(path, vram_auto=True).model.gpu is None
        return
    with emulated(streams="shuffle", seed=5):
        assert same_bits(model.logits(TOKENS[:12], 4), expected(path, TOKENS[:12]))
    assert model.stats["runs"] > 0


@pytest.mark.parametrize(
    "formats",
    [
        {"ffn_down_exps.weight": "Q6_K"},
        {"blk.1.ffn_down_exps.weight": "Q6_K"},
        {"blk.1.ffn_up_exps.weight": "Q8_0"},
        {"ffn_gate_exps.weight": "F16", "ffn_down_exps.weight": "Q4_0"},
        {"blk.1.ffn_gate_exps.weight": "IQ2_XS"},
    ],
)
def test_layers_and_projections_of_several_formats(formats: dict[str, str], tiny: Tiny) -> None:
    """Two classes of slots, gate and up of two formats, a layer that the device does not run."""
    path = tiny(arch="qwen3moe", format="Q4_K", n_layers=3, formats=formats)
    logits = expected(path, TOKENS[:12])
    for vram in budgets(path)[::2]:
        model = OnDevice(path, vram, fetch=FetchRule.always)
        assert same_bits(model.logits(TOKENS[:12], 4), logits), vram
        assert model.stats["runs"] > 0


def test_batches_larger_than_the_devices_buffers(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0")
    tokens = np.random.default_rng(8).integers(0, 96, 700).astype(np.int32)
    model = OnDevice(path, fetch=FetchRule.always, max_pairs=1)
    assert same_bits(model.evaluate(tokens[:300]), expected(path, tokens[:300]))
    assert model.stats["runs"] == sum(len(np.unique(layer)) for layer in Model(path).routing(tokens[:300])[0])


def test_trees_and_rollback(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0")
    resident = Model(path, ram="all").session(n_ctx=512)
    with emulated(streams="shuffle", seed=2):
        model = OnDevice(path, budgets(path)[1], fetch=FetchRule.shuffled)
        rng = np.random.default_rng(3)
        for _ in range(12):
            n = int(rng.integers(1, 12))
            tokens, parents = rng.integers(0, 96, n), np.array([rng.integers(-1, i) if i else -1 for i in range(n)])
            assert same_bits(model.evaluate(tokens, parents), resident.evaluate(tokens.tolist(), parents.tolist()))
            if rng.random() < 0.5:
                model.session.rollback()
                resident.rollback()
            else:
                model.session.commit(np.zeros(1, np.int32))
                resident.commit([0])


def test_experts_stay_when_the_policy_likes_them(tiny: Tiny) -> None:
    """A few tokens over and over: their experts come to the device once and are found there from then on."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    tokens = [3, 4, 5] * 30
    for fetch in (FetchRule.always, FetchRule.never, FetchRule.by_cost):
        model = OnDevice(path, fetch=fetch)
        model.logits(tokens, 1)
        stats = model.stats
        used = sum(len(np.unique(layer)) for layer in Model(path).routing(tokens)[0])
        assert stats["fetches"] + stats["offers"] == used
        assert stats["hits"] > 4 * used
        states = model.model.experts.states
        assert (states == 3).sum() == stats["resident"] == used


def test_what_the_device_holds_leaves_ram_first(tiny: Tiny) -> None:
    """The tiers together hold more than either: at half and half nearly nothing is twice in memory."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=8, n_layers=1)
    slot = OnDevice(path, 0).model.experts.slot_bytes[0]
    stats = OnDevice(path).stats
    vram = stats["least_bytes"] + 3 * (stats["all_bytes"] - stats["fixed_bytes"] - stats["dense_bytes"]) // 8
    model = OnDevice(path, vram, fetch=FetchRule.never, budget=4 * slot, background=False, experts_only=True)
    model.logits(np.random.default_rng(1).integers(0, 96, 120).astype(np.int32), 1)
    in_ram, on_device = model.model.experts.stats["resident"], model.stats["resident"]
    assert (in_ram, on_device) == (4, 4)
    both = (model.model.experts.states == 3).sum() + (model.model.experts.states == 2).sum()
    assert both > 6


def test_budgets_that_do_not_work(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0")
    stats = OnDevice(path).stats
    least = stats["least_bytes"]
    with pytest.raises(OutOfMemoryError, match=f"works with {least} bytes .*raise --vram"):
        OnDevice(path, least - 1)
    assert OnDevice(path, least).stats["slots"] == 1
    with emulated(device_mem=stats["all_bytes"] - 1):
        with pytest.raises(OutOfMemoryError, match=f"are free there; use --vram auto, or a size from {least}"):
            OnDevice(path)
        smaller = OnDevice(path, vram_auto=True)
        assert smaller.stats["budget_bytes"] < stats["budget_bytes"]
        assert same_bits(smaller.logits(TOKENS, 5), expected(path))
    with emulated(device_mem=least - 1):
        model = OnDevice(path, vram_auto=True)
        assert model.model.gpu is None
        assert f"works with {least} bytes" in model.model.vram_note
        assert same_bits(model.logits(TOKENS, 5), expected(path))


def test_no_device(tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0")
    if not (Path(_core.__file__).parent / "libexpertree_cuda.so").exists():
        with pytest.raises(DeviceError, match=r"built without CUDA.*leave --vram out"):
            OnDevice(path, device="cuda")
        model = OnDevice(path, device="cuda", vram_auto=True).model
        assert model.gpu is None
        assert "built without CUDA" in model.vram_note
    with pytest.raises(InvalidRequestError, match="device backend 'metal' is not known"):
        OnDevice(path, device="metal")


def test_one_tensor_per_expert(tmp_path: Path) -> None:
    path = TinyModel(arch="mixtral", format="Q8_0", per_expert_tensors=True).write(tmp_path / "m.gguf")
    model = OnDevice(path, fetch=FetchRule.always)
    assert same_bits(model.logits(TOKENS, 4), expected(path))
