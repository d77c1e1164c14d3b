"""Layers whose experts are all on the device: they run in the same call as attention, and a step is one round trip."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_session import same_bits
from emulated_device import STREAMS, emulated, leaks, library, n_calls, set_up
from expertree import DeviceError, Model
from expertree._core._testing import FetchRule
from recorded_model import MOE_ARCHITECTURES as RECORDED
from test_vram import OnDevice, budgets, expected
from test_vram_attention import cpu_session, device_session, random_life
from tiny_model import MOE_ARCHITECTURES

Tiny = Callable[..., Path]
TOKENS = np.random.default_rng(2).integers(0, 96, 40).astype(np.int32)
# Of these a layer with experts needs the CPU in any case.
NOT_WHOLE = {
    "qwen2moe": "shared experts with a gate",
    "qwen3next": "recurrent layers",
    "qwen35moe": "recurrent layers",
    "qwen35moe-mtp": "recurrent layers",
    "lfm2moe": "convolutions",
    "deepseek2": "latent attention",
    "deepseek2-lite": "latent attention",
    "deepseek2-joint": "latent attention",
    "grok": "a dense part beside the experts",
    "llama4": "weighted inputs",
    "gemma4-moe": "norms between experts and the rest",
    "smallthinker": "a router before attention",
}


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


def filled(path: Path, vram: int | None = None, **options: Any) -> OnDevice:
    model = OnDevice(path, **({} if vram is None else {"vram": vram}), fetch=FetchRule.always, **options)
    model.model.load_experts()
    return model


def waits_of_a_step(path: Path) -> int:
    model = Model(path, vram="all")
    session = model.session(temperature=0.0)
    session.prefill([5, 9, 5])
    model.load_experts()
    for _ in range(24):
        session.step()
    before = n_calls("cudaEventSynchronize")
    session.step()
    return n_calls("cudaEventSynchronize") - before


@pytest.mark.parametrize("arch", [*MOE_ARCHITECTURES, *RECORDED])
def test_a_step_is_one_round_trip(arch: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    path = tiny(arch=arch, format="Q8_0")
    if Model(path).n_experts == 0:
        pytest.skip(f"{arch} has no experts")
    assert (waits_of_a_step(path) == 1) == (arch not in NOT_WHOLE)


LIVES = [(arch, "shuffle") for arch in (*MOE_ARCHITECTURES, *RECORDED) if arch not in NOT_WHOLE]
LIVES += [("qwen3moe", "eager"), ("qwen3moe", "lazy")]


@pytest.mark.parametrize(("arch", "streams"), LIVES)
def test_lives_of_sequences(arch: str, streams: str, tiny: Tiny) -> None:
    """Trees of all widths, each shape plain, captured, and as a graph."""
    path = tiny(arch=arch, format="Q8_0")
    with emulated(streams=streams, seed=len(arch)):
        model = filled(path)
        random_life(device_session(model), cpu_session(path), 17, 10)
        del model
        assert leaks() == ""


@pytest.mark.parametrize("streams", STREAMS)
def test_layers_that_have_all_and_lose_some(streams: str, tiny: Tiny) -> None:
    """A slot is missing: each expert that comes takes that of another layer, which was whole until then."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_layers=4)
    for vram in budgets(path)[-2:-1] * 3:
        with emulated(streams=streams, seed=vram % 7):
            model = filled(path, vram)
            before = model.stats["fetches"]
            assert same_bits(model.logits(TOKENS, 3), expected(path, TOKENS))
            assert model.stats["fetches"] > before


def test_formats_of_a_layers_own(tiny: Tiny) -> None:
    for form in ("Q4_K", "Q6_K", "F16", "F32"):
        path = tiny(arch="qwen3moe", format="Q8_0", formats={"blk.1.ffn_down_exps.weight": form})
        with emulated(streams="lazy"):
            assert same_bits(filled(path).logits(TOKENS, 7), expected(path, TOKENS)), form


def test_batches_larger_than_the_devices_buffers(tiny: Tiny) -> None:
    """Those layers run their experts one after the other, with the CPU between."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    model = filled(path, max_pairs=1)
    assert same_bits(model.logits(TOKENS, len(TOKENS)), expected(path, TOKENS))


def test_what_is_counted(tiny: Tiny) -> None:
    """Uses, hits and runs, as layer by layer."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_layers=3)
    counts = []
    for measured_runs in (0, 1 << 40):
        model = filled(path, measured_runs=measured_runs)
        before = n_calls("cudaEventSynchronize")
        model.logits(TOKENS, 4)
        n_waits = n_calls("cudaEventSynchronize") - before
        stats, pager = model.stats, model.model.experts.stats
        names = ("uses", "device_hits", "hits", "late", "misses")
        counts.append([stats[name] for name in ("hits", "runs", "resident")] + [pager[name] for name in names])
        assert (n_waits < 30) == (measured_runs == 0)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize", "cudaLaunchKernel"])
def test_a_call_fails(call: str, tiny: Tiny) -> None:
    """The sequence is as it was; mixtures go on as a whole when their experts are there again."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    ids, tree = np.asarray([1, 2, 3, 4], np.int32), np.asarray([-1, 0, 0, 2], np.int32)
    n_failed = 0
    for nth in (1, 2, 3, 5, 8, 13, 21, 34):
        with emulated(streams="lazy", seed=nth):
            model, cpu = filled(path), cpu_session(path)
            session = device_session(model)
            for one in (session, cpu):
                one.prefill(TOKENS[:9])
            set_up(fail=f"{call}:{nth}")
            try:
                got = session.evaluate(ids, tree)[0]
            except DeviceError:
                n_failed += 1
                got = session.evaluate(ids, tree)[0]
            assert same_bits(got, cpu.evaluate(ids, tree)[0]), nth
            set_up(fail="")
            model.model.load_experts()
            for one in (session, cpu):
                one.commit(np.asarray([0, 1], np.int32))
            assert same_bits(session.evaluate(ids, tree)[0], cpu.evaluate(ids, tree)[0]), nth
            library().expertree_emu_clear_faults()
            del session, model
            assert leaks() == ""
    assert n_failed >= (5 if call == "cudaLaunchKernel" else 2 if call == "cudaMemcpyAsync" else 1)


def test_drafts_and_a_budget_of_experts(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """MoE-Spec's rows choose again on the CPU; its text is that of the CPU, as is that of the other selectors."""
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    path = tiny(arch="qwen3moe", format="Q8_0")
    for select in ("residency", "all", "moespec:3"):
        texts = []
        for options in ({"vram": "all"}, {"ram": "all"}):
            model = Model(path, n_ctx=256, **options)  # type: ignore[arg-type]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                session = model.session(n_ctx=256, draft="ngram", select=select, temperature=0.0)
            session.prefill([5, 9, 5, 9, 33, 60, 5, 9])
            model.load_experts()
            while len(session) < 120:
                session.step()
            texts.append(list(session.tokens[:120]))
        assert texts[0] == texts[1], select
